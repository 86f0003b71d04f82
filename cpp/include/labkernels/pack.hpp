// From the file's layout to panels (matrix.hpp), and one row back out for the embedding. Runs once, at load: plain C++.
#pragma once
#include <cstdint>
#include <cstring>

#include "labkernels/matrix.hpp"

namespace labkernels {

inline float half_to_float(const uint8_t* p) {
    const uint32_t h = p[0] | p[1] << 8, sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
        const float value = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void pack_f32(uint8_t* to, const float* from, const Matrix& m) {
    float* out = reinterpret_cast<float*>(to);
    for (int64_t panel = 0; panel < m.panels(); panel++)
        for (int64_t k = 0; k < m.columns; k++)
            for (int64_t lane = 0; lane < PANEL; lane++, out++) {
                const int64_t row = panel * PANEL + lane;
                *out = row < m.rows ? from[row * m.columns + k] : 0.0f;
            }
}

// Bytes of 32 weights in the file: scale f16, (minimum f16,) quants; see quant/gguf_blocks.py.
inline int64_t file_block_bytes(Format format) { return format == Format::q8_0 ? 34 : format == Format::q4_0 ? 18 : 20; }

inline void pack_blocks(uint8_t* to, const uint8_t* from, const Matrix& m) {
    const int64_t blocks = m.columns / BLOCK, file_bytes = file_block_bytes(m.format), header = m.format == Format::q4_1 ? 4 : 2;
    std::memset(to, 0, (size_t)(m.panels() * m.panel_bytes()));
    for (int64_t row = 0; row < m.rows; row++)
        for (int64_t block = 0; block < blocks; block++) {
            const uint8_t *in = from + (row * blocks + block) * file_bytes, *quants = in + header;
            uint8_t* out = to + row / PANEL * m.panel_bytes() + block * m.block_bytes();
            const int64_t lane = row % PANEL;
            reinterpret_cast<float*>(out)[lane] = half_to_float(in);
            if (m.format == Format::q4_1) reinterpret_cast<float*>(out + 64)[lane] = half_to_float(in + 2);
            uint8_t* packed = out + (m.format == Format::q4_1 ? 128 : 64) + lane;
            if (m.format == Format::q8_0)
                for (int64_t k = 0; k < BLOCK; k++) packed[k * PANEL] = quants[k];
            else
                for (int64_t k = 0; k < BLOCK; k++) {  // file: column k low, k + 16 high; packed: column 2i low, 2i + 1 high
                    const uint8_t nibble = k < 16 ? quants[k] & 15 : quants[k - 16] >> 4;
                    packed[k / 2 * PANEL] |= (uint8_t)(nibble << (k % 2 * 4));
                }
        }
}

// out[k] = w[row][k], with the arithmetic of `expand_panel` in linear.hpp
inline void unpack_row(float* out, const Matrix& m, int64_t row) {
    const int64_t lane = row % PANEL;
    const uint8_t* panel = m.panel(row / PANEL);
    if (m.format == Format::f32) {
        for (int64_t k = 0; k < m.columns; k++) out[k] = reinterpret_cast<const float*>(panel)[k * PANEL + lane];
        return;
    }
    for (int64_t block = 0; block < m.columns / BLOCK; block++, panel += m.block_bytes(), out += BLOCK) {
        const float scale = reinterpret_cast<const float*>(panel)[lane];
        for (int64_t k = 0; k < BLOCK; k++) {
            if (m.format == Format::q8_0) {
                out[k] = scale * (float)(int8_t)panel[64 + k * PANEL + lane];
                continue;
            }
            const uint8_t byte = panel[(m.format == Format::q4_1 ? 128 : 64) + k / 2 * PANEL + lane];
            const float q = (float)(k % 2 ? byte >> 4 : byte & 15);
            out[k] = m.format == Format::q4_1 ? scale * q + reinterpret_cast<const float*>(panel + 64)[lane] : scale * (q - 8.0f);
        }
    }
}

}  // namespace labkernels

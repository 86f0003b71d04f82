// From the file's layout to panels (matrix.hpp). Runs once, at load: plain C++.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "labkernels/matrix.hpp"

namespace labkernels {

// 64-byte aligned memory that only grows: a panel row is one cache line. What was in it is lost when it grows.
class AlignedBytes {
   public:
    AlignedBytes() : size_(0) {}
    explicit AlignedBytes(int64_t bytes) : size_(0) { at_least(bytes); }
    uint8_t* get() const { return data_.get(); }
    uint8_t* at_least(int64_t bytes) {
        if (bytes > size_) {
            data_.reset(static_cast<uint8_t*>(::operator new((size_t)bytes, std::align_val_t(64))));
            size_ = bytes;
        }
        return data_.get();
    }

   private:
    struct Free {
        void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<uint8_t, Free> data_;
    int64_t size_;
};

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

inline void pack_f32(uint8_t* to, const float* from, const Matrix& m, int64_t panel_begin, int64_t panel_end) {
    float* out = reinterpret_cast<float*>(to + panel_begin * m.panel_bytes());
    for (int64_t panel = panel_begin; panel < panel_end; panel++)
        for (int64_t k = 0; k < m.columns; k++)
            for (int64_t lane = 0; lane < PANEL; lane++, out++) {
                const int64_t row = panel * PANEL + lane;
                *out = row < m.rows ? from[row * m.columns + k] : 0.0f;
            }
}

inline void pack_int8(uint8_t* to, const int8_t* from, const float* scales, const Matrix& m) {
    std::memset(to, 0, (size_t)(m.panels() * m.panel_bytes()));
    for (int64_t row = 0; row < m.rows; row++) {
        uint8_t* panel = to + row / PANEL * m.panel_bytes();
        const int64_t lane = row % PANEL;
        for (int64_t k = 0; k < m.columns; k++) panel[k / 4 * 64 + lane * 4 + k % 4] = (uint8_t)from[row * m.columns + k];
        reinterpret_cast<float*>(panel + m.quant_bytes())[lane] = scales[row];
    }
}

// Bytes of 32 weights in the file: scale f16, (minimum f16,) quants; see quant/gguf_blocks.py.
inline int64_t file_block_bytes(Format format) { return format == Format::q8_0 ? 34 : format == Format::q4_0 ? 18 : 20; }

inline void pack_blocks(uint8_t* to, const uint8_t* from, const Matrix& m, int64_t panel_begin, int64_t panel_end) {
    const int64_t blocks = m.blocks(), file_bytes = file_block_bytes(m.format), header = m.format == Format::q4_1 ? 4 : 2;
    for (int64_t p = panel_begin; p < panel_end; p++) {
        uint8_t* panel = to + p * m.panel_bytes();
        if ((p + 1) * PANEL > m.rows) std::memset(panel, 0, (size_t)m.panel_bytes());
        for (int64_t row = p * PANEL; row < (p + 1) * PANEL && row < m.rows; row++)
            for (int64_t block = 0; block < blocks; block++) {
                const uint8_t *in = from + (row * blocks + block) * file_bytes, *quants = in + header;
                const int64_t lane = row % PANEL;
                std::memcpy(panel + m.quant_bytes() + block * m.scale_bytes() + lane * 2, in, 2);
                if (m.format == Format::q4_1) std::memcpy(panel + m.quant_bytes() + block * 64 + 32 + lane * 2, in + 2, 2);
                uint8_t* out = panel + block * (m.nibbles() ? 256 : 512) + lane * 4;
                if (m.format == Format::q8_0) {
                    for (int64_t four = 0; four < 8; four++) std::memcpy(out + four * 64, quants + four * 4, 4);
                    continue;
                }
                for (int64_t g = 0; g < 4; g++)  // file: byte i holds columns i and i + 16; packed: 8g + j and 8g + 4 + j
                    for (int64_t j = 0; j < 4; j++) {
                        const uint8_t low = quants[(8 * g + j) % 16], high = quants[(8 * g + 4 + j) % 16];
                        out[g * 64 + j] = (uint8_t)(g < 2 ? (low & 15) | (high & 15) << 4 : low >> 4 | (high & 0xf0));
                    }
            }
    }
}

}  // namespace labkernels

// embedding: out[t] = w[ids[t]], rows of a packed matrix taken back out of its panels, exactly as the file means them.
// Bytes per token: one row read (of a packed matrix from columns of its panel, 16 lanes apart), 4 columns written. Its time is
// that of a few hundred loads a token, so there is one version, in plain C++.
#pragma once
#include "labkernels/pack.hpp"

namespace labkernels {

// out[k] = w[row][k], with the arithmetic of the file format: scale * q (+ minimum), a product and then a sum
inline void unpack_row(float* out, const Matrix& m, int64_t row) {
    const int64_t lane = row % PANEL;
    const uint8_t *panel = m.panel(row / PANEL), *scales = panel + m.quant_bytes();
    if (m.format == Format::f32) {
        for (int64_t k = 0; k < m.columns; k++) out[k] = reinterpret_cast<const float*>(panel)[k * PANEL + lane];
    } else if (!m.nibbles()) {
        for (int64_t k = 0; k < m.columns; k++) {
            const float scale = m.format == Format::int8 ? reinterpret_cast<const float*>(scales)[lane]
                                                         : half_to_float(scales + k / BLOCK * 32 + lane * 2);
            out[k] = scale * (float)(int8_t)panel[k / 4 * 64 + lane * 4 + k % 4];
        }
    } else {
        for (int64_t k = 0; k < m.columns; k++) {
            const uint8_t byte = panel[k / 8 * 64 + lane * 4 + k % 4], *at = scales + k / BLOCK * m.scale_bytes() + lane * 2;
            const float q = (float)(k % 8 < 4 ? byte & 15 : byte >> 4), scale = half_to_float(at);
            out[k] = m.format == Format::q4_1 ? scale * q + half_to_float(at + 32) : scale * (q - 8.0f);
        }
    }
}

inline void embedding(float* out, const int64_t* ids, const Matrix& w, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) unpack_row(out + t * w.columns, w, ids[t]);
}

}  // namespace labkernels

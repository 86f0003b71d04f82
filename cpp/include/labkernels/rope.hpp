// rope: rotates the pair (x[i], x[i + d/2]) of each head by the angle of its position (Su et al. 2021, halves convention).
// cos and sin come from a table (max_len, d/2) made once in float64: a row of it serves all heads of a token.
// Bytes per token: read and write 4 heads d, read 4 d of the table.
#pragma once
#include "labkernels/simd.hpp"

namespace labkernels::LAB_ISA {

static void rope(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t heads, int64_t dim,
                 int64_t begin, int64_t end) {
    const int64_t half = dim / 2;
    for (int64_t token = begin; token < end; token++) {
        const float *c = cos + positions[token] * half, *s = sin + positions[token] * half;
        for (int64_t head = 0; head < heads; head++) {
            const float* a = x + (token * heads + head) * dim;
            float* o = out + (token * heads + head) * dim;
            for (int64_t i = 0; i < half; i += LANES) {
                int64_t n = min_of(LANES, half - i);
                vec x1 = load_n(a + i, n), x2 = load_n(a + half + i, n), ci = load_n(c + i, n), si = load_n(s + i, n);
                store_n(o + i, fma(x1, ci, set1(0.0f) - x2 * si), n);
                store_n(o + half + i, fma(x2, ci, x1 * si), n);
            }
        }
    }
}

}  // namespace labkernels::LAB_ISA

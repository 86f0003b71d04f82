// rope: rotates the pair (x[i], x[i + d/2]) of each head by the angle of its position (Su et al. 2021, halves convention).
// cos and sin come from a table (max_len, d/2) made once in float64: a row of it serves all heads of a token.
// Bytes per token: read and write 4 heads d, read 4 d of the table.
//
// reference  a pair at a time.
// rope       16 pairs at a time: the halves convention lets a vector of first numbers meet a vector of second ones as they lie.
#pragma once
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

static void rope_reference(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t heads, int64_t dim,
                           int64_t begin, int64_t end, bool, float*) {
    const int64_t half = dim / 2;
    for (int64_t row = begin * heads; row < end * heads; row++)
        for (int64_t i = 0; i < half; i++) {
            const float x1 = x[row * dim + i], x2 = x[row * dim + half + i];
            const float c = cos[positions[row / heads] * half + i], s = sin[positions[row / heads] * half + i];
            out[row * dim + i] = x1 * c - x2 * s;
            out[row * dim + half + i] = x2 * c + x1 * s;
        }
}

static inline void rope_head(float* out, const float* x, const float* cos, const float* sin, int64_t half) {
    const auto turn = [=](int64_t i, int64_t n) {
        const vec x1 = load_some(x + i, n), x2 = load_some(x + half + i, n), c = load_some(cos + i, n), s = load_some(sin + i, n);
        store_some(out + i, fma(x1, c, set1(0.0f) - x2 * s), n);
        store_some(out + half + i, fma(x2, c, x1 * s), n);
    };
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) turn(i, LANES);
    if (i < half) turn(i, half - i);
}

// scratch: heads x dim floats, where a token waits to be written past the caches
static void rope(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t heads, int64_t dim,
                 int64_t begin, int64_t end, bool past_caches, float* scratch) {
    const int64_t half = dim / 2, width = heads * dim;
    for (int64_t token = begin; token < end; token++) {
        float* to = past_caches ? scratch : out + token * width;
        for (int64_t head = 0; head < heads; head++)
            rope_head(to + head * dim, x + token * width + head * dim, cos + positions[token] * half, sin + positions[token] * half, half);
        if (past_caches)
            write_row(out + token * width, width, true, x + (token + 1) * width, [&](int64_t i, int64_t n) { return load_some(scratch + i, n); });
    }
}

}  // namespace labkernels::LAB_ISA

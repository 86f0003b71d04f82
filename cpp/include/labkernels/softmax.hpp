// softmax: y = e^(x - max) / sum of e^(x - max), a row at a time. The maximum keeps e^ from overflowing and cancels.
//
// reference  three loops: maximum, sum of powers, quotients (each power is taken twice). Reads the row three times.
// online     two loops: maximum and sum together, where a new maximum rescales the sum (Milakov & Gimelshein 2018). One read
//            less, which pays where a row comes from memory; one more power where the maximum moves.
// softmax    three loops over vectors: maximum; powers, kept in the output row (or, where that goes past the caches, in
//            scratch) and summed in 64 lanes; one multiplication. The row stays in the caches in between.
// Bytes per row at the floor: read 4 dim, write 4 dim. About 20 operations an element: the arithmetic shows.
//
// Exactness: element i adds to lane i mod 64, then the fixed tree.
#pragma once
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

static void softmax_reference(float* out, const float* x, int64_t dim, int64_t begin, int64_t end, bool, float*) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * dim;
        float top = -INFINITY, total = 0.0f;
        for (int64_t i = 0; i < dim; i++) top = from[i] > top || isnan(from[i]) ? from[i] : top;
        for (int64_t i = 0; i < dim; i++) total += expf(from[i] - top);
        for (int64_t i = 0; i < dim; i++) out[row * dim + i] = expf(from[i] - top) / total;
    }
}

static void softmax_online(float* out, const float* x, int64_t dim, int64_t begin, int64_t end, bool, float*) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * dim;
        float top = -INFINITY, total = 0.0f;
        for (int64_t i = 0; i < dim; i++) {
            if (from[i] > top) {
                total *= expf(top - from[i]);
                top = from[i];
            }
            total += from[i] == -INFINITY ? 0.0f : expf(from[i] - top);  // -inf - -inf would be a NaN
        }
        for (int64_t i = 0; i < dim; i++) out[row * dim + i] = expf(from[i] - top) / total;
    }
}

static void softmax(float* out, const float* x, int64_t dim, int64_t begin, int64_t end, bool past_caches, float* scratch) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * dim;
        float *to = out + row * dim, *powers = past_caches ? scratch : to;
        vec top[4] = {set1(-INFINITY), set1(-INFINITY), set1(-INFINITY), set1(-INFINITY)};
        int64_t i = 0;
        for (; i + 4 * LANES <= dim; i += 4 * LANES)
            for (int j = 0; j < 4; j++) top[j] = max(top[j], load(from + i + j * LANES));
        float most = largest(max(max(top[0], top[1]), max(top[2], top[3])));
        for (; i < dim; i++) most = from[i] > most ? from[i] : most;
        vec lanes[4] = {set1(0), set1(0), set1(0), set1(0)};
        for (i = 0; i + 4 * LANES <= dim; i += 4 * LANES)
            for (int j = 0; j < 4; j++) {
                const vec power = exp(load(from + i + j * LANES) - set1(most));
                store(powers + i + j * LANES, power);
                lanes[j] = lanes[j] + power;
            }
        for (int j = 0; i < dim; i += LANES, j++) {
            const int64_t n = min_of(LANES, dim - i);
            store_n(powers + i, exp(load_n(from + i, n) - set1(most)), n);
            lanes[j] = lanes[j] + load_n(powers + i, n);  // the lanes past the row stay 0
        }
        const vec scale = set1(1.0f / sum((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])));
        write_row(to, dim, past_caches, from + dim, [&](int64_t k, int64_t n) { return load_some(powers + k, n) * scale; });
    }
}

}  // namespace labkernels::LAB_ISA

// rms_norm: y = x / sqrt(mean(x^2) + eps) * w, a row at a time (Zhang & Sennrich 2019).
//
// unfused    four loops with a row of memory between them, as array libraries do it: squares, their sum, the scaled row, the
//            weighted row. Reads 4 x 4 dim and writes 3 x 4 dim bytes, from the caches if the row fits.
// fused      two loops, nothing stored between: read x, read x again, write y. Still one add waits for the one before (4 cycles).
// chains     64 sums side by side: the wait is hidden, and the compiler may use what vectors it has.
// rms_norm   the same sums in four vectors of 16 lanes, tails masked; past the caches where the output does not fit into them.
// add_rms_norm also adds the residual, whose sum is then read once instead of twice: 4 dim bytes saved.
// Bytes per row at the floor: read 4 dim (x; w stays in L1), write 4 dim.
//
// Exactness: element i adds its square to lane i mod 64, then the fixed tree. The order depends on dim alone.
#pragma once
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

static void rms_norm_unfused(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end, bool) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * dim;
        float *to = out + row * dim, total = 0.0f;
        for (int64_t i = 0; i < dim; i++) to[i] = from[i] * from[i];
        for (int64_t i = 0; i < dim; i++) total += to[i];
        const float scale = 1.0f / sqrtf(total / (float)dim + eps);
        for (int64_t i = 0; i < dim; i++) to[i] = from[i] * scale;
        for (int64_t i = 0; i < dim; i++) to[i] = to[i] * weight[i];
    }
}

static void rms_norm_fused(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end, bool) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * dim;
        float total = 0.0f;
        for (int64_t i = 0; i < dim; i++) total += from[i] * from[i];
        const float scale = 1.0f / sqrtf(total / (float)dim + eps);
        for (int64_t i = 0; i < dim; i++) out[row * dim + i] = from[i] * scale * weight[i];
    }
}

static void rms_norm_chains(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end, bool) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * dim;
        float lanes[64] = {}, total = 0.0f;
        int64_t i = 0;
        for (; i + 64 <= dim; i += 64)
            for (int lane = 0; lane < 64; lane++) lanes[lane] += from[i + lane] * from[i + lane];
        for (int lane = 0; i < dim; i++, lane++) lanes[lane] += from[i] * from[i];
        for (int lane = 0; lane < 64; lane++) total += lanes[lane];
        const float scale = 1.0f / sqrtf(total / (float)dim + eps);
        for (i = 0; i < dim; i++) out[row * dim + i] = from[i] * scale * weight[i];
    }
}

// 1 / sqrt(mean of squares + eps) of the row whose vectors `at` gives
template <class At>
static inline float inverse_rms(int64_t dim, float eps, const At& at) {
    vec lanes[4] = {set1(0), set1(0), set1(0), set1(0)};
    int64_t i = 0;
    for (; i + 4 * LANES <= dim; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            const vec v = at(i + j * LANES, LANES);
            lanes[j] = fma(v, v, lanes[j]);
        }
    for (int j = 0; i < dim; i += LANES, j++) {
        const vec v = at(i, min_of(LANES, dim - i));
        lanes[j] = fma(v, v, lanes[j]);
    }
    const float squares = sum((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    return 1.0f / sqrtf(squares / (float)dim + eps);
}

static void rms_norm(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end, bool past_caches) {
    for (int64_t row = begin; row < end; row++) {
        const auto at = [from = x + row * dim](int64_t i, int64_t n) { return load_some(from + i, n); };
        const vec scale = set1(inverse_rms(dim, eps, at));
        write_row(out + row * dim, dim, past_caches, x + (row + 1) * dim,
                  [&](int64_t i, int64_t n) { return at(i, n) * scale * load_some(weight + i, n); });
    }
}

// `total` may be `x` or `residual`: an element is read before it is written. The sum is taken twice rather than kept, so that
// it can be written past the caches.
static void add_rms_norm(float* out, float* total, const float* x, const float* residual, const float* weight, int64_t dim, float eps,
                         int64_t begin, int64_t end, bool past_caches) {
    for (int64_t row = begin; row < end; row++) {
        const auto at = [a = x + row * dim, b = residual + row * dim](int64_t i, int64_t n) { return load_some(a + i, n) + load_some(b + i, n); };
        const vec scale = set1(inverse_rms(dim, eps, at));
        write_row(out + row * dim, dim, past_caches, x + (row + 1) * dim,
                  [&](int64_t i, int64_t n) { return at(i, n) * scale * load_some(weight + i, n); });
        write_row(total + row * dim, dim, past_caches, residual + (row + 1) * dim, at);
    }
}

}  // namespace labkernels::LAB_ISA

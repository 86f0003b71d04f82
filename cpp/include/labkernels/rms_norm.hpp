// rms_norm: y = x / sqrt(mean(x^2) + eps) * w, a row at a time (Zhang & Sennrich 2019).
// Bytes per row: read 4 dim (x) + 4 dim (w, from L1), write 4 dim. The fused form also adds the residual, whose sum is then
// read once instead of twice: 4 dim saved.
//
// Exactness: element i adds its square to lane i mod 64 (four vectors of 16, which also hides the latency of the add), then
// the fixed tree. The order depends on dim alone.
#pragma once
#include "labkernels/simd.hpp"

namespace labkernels::LAB_ISA {

static inline float inverse_rms(const float* x, int64_t dim, float eps) {
    vec lanes[4] = {set1(0), set1(0), set1(0), set1(0)};
    for (int64_t i = 0, j = 0; i < dim; i += LANES, j = (j + 1) % 4) {
        vec v = dim - i >= LANES ? load(x + i) : load_n(x + i, dim - i);
        lanes[j] = fma(v, v, lanes[j]);
    }
    float squares = sum((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    return 1.0f / sqrtf(squares / (float)dim + eps);
}

static inline void scale_row(float* out, const float* x, const float* weight, int64_t dim, float scale) {
    int64_t i = 0;
    for (; i + LANES <= dim; i += LANES) store(out + i, load(x + i) * set1(scale) * load(weight + i));
    if (i < dim) store_n(out + i, load_n(x + i, dim - i) * set1(scale) * load_n(weight + i, dim - i), dim - i);
}

static void rms_norm(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
        scale_row(out + row * dim, x + row * dim, weight, dim, inverse_rms(x + row * dim, dim, eps));
}

static void add_rms_norm(float* out, float* total, const float* x, const float* residual, const float* weight, int64_t dim, float eps,
                         int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        float* t = total + row * dim;
        for (int64_t i = 0; i < dim; i++) t[i] = x[row * dim + i] + residual[row * dim + i];
        scale_row(out + row * dim, t, weight, dim, inverse_rms(t, dim, eps));
    }
}

}  // namespace labkernels::LAB_ISA

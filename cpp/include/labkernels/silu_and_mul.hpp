// silu_and_mul: y = gate / (1 + e^-gate) * up, elementwise (SwiGLU, Shazeer 2020). Bytes per element: read 8, write 4.
//
// reference     one element at a time, with the library's expf: a call an element.
// silu_and_mul  16 elements at a time, with the polynomial of simd.hpp.
#pragma once
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

static void silu_and_mul_reference(float* out, const float* gate, const float* up, int64_t begin, int64_t end, bool) {
    for (int64_t i = begin; i < end; i++) out[i] = gate[i] < -88.0f ? 0.0f * up[i] : gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

// Below -88 the true value is under 1e-36, and exp saturates: the result is 0. A NaN stays a NaN.
static inline vec silu_times(vec gate, vec up) {
    return zero_below(gate / (set1(1.0f) + exp(set1(0.0f) - gate)), gate, -88.0f) * up;
}

static void silu_and_mul(float* out, const float* gate, const float* up, int64_t begin, int64_t end, bool past_caches) {
    write_row(out + begin, end - begin, past_caches, gate + begin + 1024,
              [&](int64_t i, int64_t n) { return silu_times(load_some(gate + begin + i, n), load_some(up + begin + i, n)); });
}

}  // namespace labkernels::LAB_ISA

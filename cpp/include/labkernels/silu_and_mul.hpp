// silu_and_mul: y = gate / (1 + e^-gate) * up, elementwise (SwiGLU, Shazeer 2020). Bytes per element: read 8, write 4.
#pragma once
#include "labkernels/simd.hpp"

namespace labkernels::LAB_ISA {

// Below -88 the true value is under 1e-36, and exp saturates: the result is 0. A NaN stays a NaN.
static inline vec silu_times(vec gate, vec up) {
    return zero_below(gate / (set1(1.0f) + exp(set1(0.0f) - gate)), gate, -88.0f) * up;
}

static void silu_and_mul(float* out, const float* gate, const float* up, int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) store(out + i, silu_times(load(gate + i), load(up + i)));
    if (i < end) store_n(out + i, silu_times(load_n(gate + i, end - i), load_n(up + i, end - i)), end - i);
}

}  // namespace labkernels::LAB_ISA

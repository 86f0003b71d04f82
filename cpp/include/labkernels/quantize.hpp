// quantize_rows: activations to int8, the left operand of the integer products.
//
//   amax = max |x| of a group (32 columns, or the whole row);  d = amax / 127;  q = round(x * (127 / amax)), halves to even
//
// A scale belongs to one row and one group, never to the batch: so a row has the same bits whatever else is computed with it.
// A group with a NaN or an Inf gets d = NaN and passes it on to every output; one below 2^-100 counts as zero, which keeps
// 127 / amax finite. s = d * sum(q) is what the minimum of a Q4_1 block is multiplied with.
// Bytes per row: read 4 K, write K + 12 per group.
#pragma once
#include "labkernels/ints.hpp"
#include "labkernels/matrix.hpp"

namespace labkernels::LAB_ISA {

// q[0 : n], n padded to whole vectors of 16 with zeros; returns the sum of q
static inline int32_t quantize_group(int8_t* q, float* d, float* s, const float* x, int64_t n) {
    ints top = splat(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) top = max(top, magnitude_bits(load(x + i)));
    if (i < n) top = max(top, magnitude_bits(load_n(x + i, n - i)));
    const int32_t bits = largest(top);  // the bits of floats >= 0 are in their order, Inf above all numbers, NaN above Inf
    float amax;
    memcpy(&amax, &bits, 4);
    const bool finite = bits < 0x7f800000, counts = finite && amax >= 7.888609e-31f;  // 2^-100
    const vec inverse = set1(counts ? 127.0f / amax : 0.0f);
    *d = counts ? amax / 127.0f : finite ? 0.0f : NAN;
    ints total = splat(0);
    for (i = 0; i < n; i += LANES) {
        const vec part = i + LANES <= n ? load(x + i) : load_n(x + i, n - i);
        const ints rounded_part = counts ? rounded(part * inverse) : splat(0);
        total = total + rounded_part;
        store_bytes(q + i, rounded_part);
    }
    const int32_t count = sum(total);
    *s = *d * (float)count;
    return count;
}

static void quantize_rows(const Activations& to, const float* x, int64_t columns, int64_t begin, int64_t end) {
    const int64_t groups = to.groups, width = groups == 1 ? columns : BLOCK;
    for (int64_t row = begin; row < end; row++)
        for (int64_t g = 0; g < groups; g++) {
            const int64_t at = row * groups + g;
            to.sums[at] = quantize_group(to.q + row * to.stride + g * width, to.d + at, to.s + at, x + row * columns + g * width, width);
        }
}

}  // namespace labkernels::LAB_ISA

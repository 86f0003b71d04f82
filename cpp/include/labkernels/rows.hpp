// Walking over rows: in blocks of registers, in vectors to the masked tail, past the caches, turned.
#pragma once
#include "labkernels/simd.hpp"

namespace labkernels::LAB_ISA {

// Rows [row, end) in as few blocks as hold at most MOST each, all about as large: 8 of at most 6 are 4 and 4, not 6 and 2, as a
// small block leaves the arithmetic units waiting. Calls run(row, Count<R>) for each.
template <int N>
struct Count {
    static constexpr int value = N;
};
template <int MOST, class Run>
static inline void with_count(int64_t row, int64_t count, const Run& run) {
    if (count == MOST) run(row, Count<MOST>());
    else if constexpr (MOST > 1) with_count<MOST - 1>(row, count, run);
}
template <int MOST, class Run>
static inline void in_row_blocks(int64_t row, int64_t end, const Run& run) {
    for (int64_t blocks = (end - row + MOST - 1) / MOST; blocks > 0; blocks--) {
        const int64_t count = (end - row + blocks - 1) / blocks;
        with_count<MOST>(row, count, run);
        row += count;
    }
}

// out[c * out_stride + r] = rows[r * row_stride + c] for 16 rows; `meanwhile` is called once for every four columns
template <class Meanwhile>
static inline void transpose16(float* out, int64_t out_stride, const float* rows, int64_t row_stride, int64_t columns, const Meanwhile& meanwhile) {
    int64_t c = 0;
#if defined(LAB_ISA_AVX512) || defined(LAB_ISA_AVX2)
    const float *r0 = rows, *r4 = rows + 4 * row_stride, *r8 = rows + 8 * row_stride, *r12 = rows + 12 * row_stride;
    for (; c + 4 <= columns; c += 4, r0 += 4, r4 += 4, r8 += 4, r12 += 4, out += 4 * out_stride) {  // 4 x 4 in each quarter
        meanwhile();
        vec t[4];
        for (int i = 0; i < 4; i++) t[i] = four_each(r0 + i * row_stride, r4 + i * row_stride, r8 + i * row_stride, r12 + i * row_stride);
        const vec a = unpack_low(t[0], t[1]), b = unpack_high(t[0], t[1]), e = unpack_low(t[2], t[3]), d = unpack_high(t[2], t[3]);
        store(out, pairs_low(a, e));
        store(out + out_stride, pairs_high(a, e));
        store(out + 2 * out_stride, pairs_low(b, d));
        store(out + 3 * out_stride, pairs_high(b, d));
    }
#endif
    (void)meanwhile;
    for (; c < columns; c++, out += out_stride)
        for (int r = 0; r < LANES; r++) out[r] = rows[r * row_stride + c];
}

// out[i] = at(i, n) for all of n elements, in vectors; `at(i, count)` gives elements i to i + count. With `past_caches` the
// lines are written without being read first, which saves a third of the traffic where the output is larger than the caches,
// and `next`, what will be read after this row, is asked for meanwhile, so that reading and writing go on together.
template <class At>
static inline void write_row(float* out, int64_t n, bool past_caches, const float* next, const At& at) {
    int64_t i = 0;
    if (past_caches) {
        i = min_of(n, (int64_t)((64 - (uintptr_t)out % 64) / 4 % 16));
        if (i) store_n(out, at(0, i), i);
        for (; i + LANES <= n; i += LANES) {
            prefetch_l2(next + i);
            stream(out + i, at(i, LANES));
        }
    } else {
        for (; i + LANES <= n; i += LANES) store(out + i, at(i, LANES));
    }
    if (i < n) store_n(out + i, at(i, n - i), n - i);
}
static inline vec load_some(const float* p, int64_t n) { return n == LANES ? load(p) : load_n(p, n); }
static inline void store_some(float* p, vec a, int64_t n) {
    if (n == LANES) store(p, a);
    else store_n(p, a, n);
}

}  // namespace labkernels::LAB_ISA

// What this machine can do at best: the roofs that a kernel is held against. Each loop does one thing, over a range, so that
// all threads can do it at once; results are returned so that no compiler drops the loop.
//
// read           streams memory: 4 bytes an element, four sums side by side.
// copy           4 bytes read and 4 written, past the caches where they do not fit.
// multiply_adds  float32, 12 independent chains of vectors: enough to hide the 4 cycles of each, no memory.
// int8_dots      the same for bytes: what vpdpbusd (or its stand-in) can do.
#pragma once
#include "labkernels/ints.hpp"

namespace labkernels::LAB_ISA {

static double read(const float* x, int64_t begin, int64_t end) {
    vec sums[8];
    for (vec& s : sums) s = set1(0.0f);
    int64_t i = begin;
    for (; i + 8 * LANES <= end; i += 8 * LANES)
        for (int j = 0; j < 8; j++) {
            prefetch_l2(x + i + j * LANES + 2048);  // 8 KB on: a page further than the machine looks ahead by itself
            sums[j] = sums[j] + load(x + i + j * LANES);
        }
    double total = 0;
    for (; i < end; i++) total += x[i];
    for (const vec& s : sums) total += sum(s);
    return total;
}

static void copy(float* out, const float* x, int64_t begin, int64_t end, bool past_caches) {
    write_row(out + begin, end - begin, past_caches, x + begin + 1024, [from = x + begin](int64_t i, int64_t n) { return load_some(from + i, n); });
}

static float multiply_adds(int64_t count) {  // lane multiply-adds
    constexpr int CHAINS = 12;
    vec acc[CHAINS];
    for (int j = 0; j < CHAINS; j++) acc[j] = set1((float)j);
    const vec a = set1(0.999f), b = set1(0.001f);
    for (int64_t i = 0; i < count; i += CHAINS * LANES)
        for (int j = 0; j < CHAINS; j++) acc[j] = fma(acc[j], a, b);
    vec total = acc[0];
    for (int j = 1; j < CHAINS; j++) total = total + acc[j];
    return sum(total);
}

static int32_t int8_dots(int64_t count) {  // multiply-adds of bytes
    constexpr int CHAINS = 12;
    ints acc[CHAINS], w = splat(0x01020304);
    for (int j = 0; j < CHAINS; j++) acc[j] = splat(j);
    for (int64_t i = 0; i < count; i += CHAINS * LANES * 4) {
        const ints x = splat((int32_t)i & 0x03030303);  // one broadcast for 12 dots: not foreseen, and no memory
        for (int j = 0; j < CHAINS; j++) acc[j] = dot4(acc[j], w, x);
    }
    ints total = acc[0];
    for (int j = 1; j < CHAINS; j++) total = total + acc[j];
    return sum(total);
}

}  // namespace labkernels::LAB_ISA

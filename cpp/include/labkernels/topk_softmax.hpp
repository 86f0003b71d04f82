// topk_softmax: the k largest numbers of a row, largest first, their places, and their shares of the row's softmax: what a router
// does. Of equals the lower place goes first; a NaN stands where -inf would. With `renormalize` the softmax is over the k alone.
//
// reference     k searches over the row for the largest that is not taken yet, then powers by the library's expf. Reads k + 2 times.
// topk_softmax  one pass that keeps the k in order, so that most numbers cost one comparison with the last of them; powers 16 at a
//               time with the polynomial of simd.hpp.
// Bytes per row at the floor: read 4 experts, write 12 k. A row is short (8 to some hundreds of experts): calls cost more than bytes.
//
// Exactness: a row is one worker's. The sum over the row adds element i to lane i mod 16, then the fixed tree; that over the k is one
// chain. A NaN anywhere in a row, chosen or not, makes all its weights NaN: one that hid would leave a wrong answer that looks right.
#pragma once
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

static inline float rank_of(float x) { return isnan(x) ? -INFINITY : x; }

static void topk_softmax_reference(float* weights, int64_t* ids, const float* x, int64_t experts, int64_t k, bool renormalize, int64_t begin,
                                   int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * experts;
        float* to = weights + row * k;
        int64_t* id = ids + row * k;
        for (int64_t j = 0; j < k; j++) {
            id[j] = -1;
            for (int64_t e = 0; e < experts; e++) {
                bool taken = false;
                for (int64_t i = 0; i < j; i++) taken = taken || id[i] == e;
                if (!taken && (id[j] < 0 || rank_of(from[e]) > rank_of(from[id[j]]))) id[j] = e;
            }
        }
        float all = 0.0f, chosen = 0.0f;
        for (int64_t e = 0; e < experts; e++) all += expf(from[e] - from[id[0]]);
        for (int64_t j = 0; j < k; j++) chosen += to[j] = expf(from[id[j]] - from[id[0]]);
        for (int64_t j = 0; j < k; j++) to[j] /= renormalize && !isnan(all) ? chosen : all;
    }
}

static void topk_softmax(float* weights, int64_t* ids, const float* x, int64_t experts, int64_t k, bool renormalize, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * experts;
        float* to = weights + row * k;  // the logits of the chosen, until they become weights
        int64_t* id = ids + row * k;
        bool nan = false;
        for (int64_t e = 0, kept = 0; e < experts; e++) {
            const float rank = rank_of(from[e]);
            nan = nan || isnan(from[e]);
            if (kept == k && !(rank > to[k - 1])) continue;
            int64_t at = kept < k ? kept++ : k - 1;
            for (; at > 0 && rank > to[at - 1]; at--) {
                to[at] = to[at - 1];
                id[at] = id[at - 1];
            }
            to[at] = rank;
            id[at] = e;
        }
        const vec top = set1(nan ? NAN : to[0]);
        float total = 0.0f;
        if (!renormalize) {
            vec lanes = set1(0);
            for (int64_t e = 0; e < experts; e += LANES) {
                const int64_t n = min_of(LANES, experts - e);
                float powers[LANES] = {};  // the lanes past the row stay 0
                store_n(powers, exp(load_n(from + e, n) - top), n);
                lanes = lanes + load(powers);
            }
            total = sum(lanes);
        }
        for (int64_t j = 0; j < k; j += LANES) {
            const int64_t n = min_of(LANES, k - j);
            store_n(to + j, exp(load_n(to + j, n) - top), n);
        }
        if (renormalize)
            for (int64_t j = 0; j < k; j++) total += to[j];
        for (int64_t j = 0; j < k; j++) to[j] /= total;
    }
}

}  // namespace labkernels::LAB_ISA

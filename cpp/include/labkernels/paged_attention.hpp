// paged_attention: softmax(q k^T * scale) v for each token over its sequence's blocks, causal, grouped heads.
//
// Ragged: a work item is (token, kv head). A token at position p sees keys 0..p, wherever their blocks lie; the batch has no
// padding and no notion of prefill or decode. All query heads of a group use a tile of K and V while it is in L1.
//
// Exactness: keys are taken in absolute tiles of 64, merged in order by the online softmax (Milakov & Gimelshein 2018; Dao et
// al. 2022), and tiles in absolute splits of 512 keys, merged in order. Both depend on the position alone. Keys past p are
// skipped, never multiplied by zero: their slots may hold the NaN of an earlier owner.
// Bytes per item: 8 (p + 1) head_dim of K and V.
#pragma once
#include "labkernels/kernel_table.hpp"
#include "labkernels/simd.hpp"

namespace labkernels::LAB_ISA {

static inline float dot(const float* a, const float* b, int64_t n) {
    vec acc = set1(0.0f);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_n(a + i, n - i), load_n(b + i, n - i), acc);
    return sum(acc);
}

// A running softmax: sum of e^(s - max), and the values weighted with them.
struct Running {
    float *max, *sum, *values;

    void clear(int64_t dim) const {
        *max = -INFINITY;
        *sum = 0.0f;
        for (int64_t i = 0; i < dim; i++) values[i] = 0.0f;
    }
};

static inline Running running(float* scratch, int64_t index, int64_t dim) {
    float* at = scratch + index * (dim + 2);
    return {at, at + 1, at + 2};
}

// values[i] = values[i] * keep + sum over j of weights[j] * v[j][i]: one chain over j per element
static inline void weigh_values(float* values, float keep, const float* weights, const float* const* v, int64_t count, int64_t dim) {
    for (int64_t i = 0; i < dim; i += LANES) {
        const int64_t n = min_of(LANES, dim - i);
        vec acc = load_n(values + i, n) * set1(keep);
        for (int64_t j = 0; j < count; j++) acc = fma(set1(weights[j]), load_n(v[j] + i, n), acc);
        store_n(values + i, acc, n);
    }
}

static inline void absorb_tile(Running part, const float* q, const float* const* k, const float* const* v, int64_t count, int64_t dim, float scale) {
    float weights[TILE];
    for (int64_t j = 0; j < TILE; j++) weights[j] = j < count ? dot(q, k[j], dim) * scale : -INFINITY;
    vec top = load(weights);
    for (int64_t j = LANES; j < TILE; j += LANES) top = max(top, load(weights + j));
    const float tile_max = largest(top), new_max = tile_max > *part.max ? tile_max : *part.max;
    vec total = set1(0.0f);
    for (int64_t j = 0; j < TILE; j += LANES) {
        vec w = exp(load(weights + j) - set1(new_max));
        store(weights + j, w);
        total = total + w;
    }
    const float keep = exp1(*part.max - new_max);
    *part.sum = *part.sum * keep + sum(total);
    *part.max = new_max;
    weigh_values(part.values, keep, weights, v, count, dim);
}

static inline void merge(Running total, Running part, int64_t dim) {
    const float new_max = *part.max > *total.max ? *part.max : *total.max;
    const float keep = exp1(*total.max - new_max), take = exp1(*part.max - new_max);
    *total.sum = *total.sum * keep + *part.sum * take;
    *total.max = new_max;
    for (int64_t i = 0; i < dim; i++) total.values[i] = total.values[i] * keep + part.values[i] * take;
}

static void attend(const AttentionArgs& a, int64_t token, int64_t kv_head, float* scratch) {
    const int64_t group = a.group(), dim = a.dim, num_keys = a.positions[token] + 1;
    const int64_t* table = a.tables + a.table_start[a.sequence_of[token]];
    const float* q = a.q + (token * a.heads + kv_head * group) * dim;
    for (int64_t g = 0; g < group; g++) running(scratch, g, dim).clear(dim);
    for (int64_t split = 0; split < num_keys; split += SPLIT) {
        const int64_t split_end = min_of(split + SPLIT, num_keys);
        for (int64_t g = 0; g < group; g++) running(scratch, group + g, dim).clear(dim);
        for (int64_t tile = split; tile < split_end; tile += TILE) {
            const int64_t count = min_of(TILE, split_end - tile);
            const float *k[TILE], *v[TILE];
            for (int64_t j = 0; j < count; j++) {
                const int64_t block = table[(tile + j) / a.block_size], slot = (tile + j) % a.block_size;
                const int64_t at = ((block * a.kv_heads + kv_head) * a.block_size + slot) * dim;
                k[j] = a.keys + at;
                v[j] = a.values + at;
            }
            for (int64_t g = 0; g < group; g++) absorb_tile(running(scratch, group + g, dim), q + g * dim, k, v, count, dim, a.scale);
        }
        for (int64_t g = 0; g < group; g++) merge(running(scratch, g, dim), running(scratch, group + g, dim), dim);
    }
    float* out = a.out + (token * a.heads + kv_head * group) * dim;
    for (int64_t g = 0; g < group; g++) {
        const Running done = running(scratch, g, dim);
        for (int64_t i = 0; i < dim; i++) out[g * dim + i] = done.values[i] / *done.sum;
    }
}

static void paged_attention(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch) {
    for (int64_t item = begin; item < end; item++) attend(a, item / a.kv_heads, item % a.kv_heads, scratch);
}

}  // namespace labkernels::LAB_ISA

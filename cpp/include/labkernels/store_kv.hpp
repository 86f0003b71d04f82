// store_kv: each token's K and V into its slot of the pool, as they are or as int8 with a scale per (token, kv head).
// A slot is block * block_size + offset. Bytes per token: 8 kv_heads dim read, as much written, or 2 kv_heads (dim + 4) in int8.
// A copy and no arithmetic (int8 apart: quantize.hpp), so there is one version.
#pragma once
#include <cstring>

#include "labkernels/kernel_table.hpp"

namespace labkernels {

struct StoreArgs {
    void* kv;  // (2, blocks, kv_heads, block_size, dim) float32, or int8 with 4 more bytes behind each dim
    bool int8_pool;
    const float *k, *v;    // (tokens, kv_heads, dim)
    const int64_t* slots;  // (tokens,)
    int64_t blocks, kv_heads, block_size, dim;

    int64_t row_bytes() const { return int8_pool ? dim + 4 : dim * 4; }
    int64_t scratch_floats() const { return dim / 4 + 5; }
};

inline void store_row(uint8_t* to, const StoreArgs& a, const KernelTable& kernels, const float* from, float* scratch) {
    if (!a.int8_pool) {
        std::memcpy(to, from, (size_t)a.dim * 4);
        return;
    }
    float scale, unused;
    int8_t* whole_vectors = (int8_t*)scratch;  // quantize_group writes 16 at a time
    kernels.quantize_group(whole_vectors, &scale, &unused, from, a.dim);
    std::memcpy(to, whole_vectors, (size_t)a.dim);
    std::memcpy(to + a.dim, &scale, 4);
}

inline void store_kv(const StoreArgs& a, const KernelTable& kernels, int64_t begin, int64_t end, float* scratch) {
    const int64_t half = a.blocks * a.kv_heads * a.block_size * a.row_bytes();
    for (int64_t t = begin; t < end; t++)
        for (int64_t head = 0; head < a.kv_heads; head++) {
            const int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size, from = (t * a.kv_heads + head) * a.dim;
            uint8_t* to = (uint8_t*)a.kv + ((block * a.kv_heads + head) * a.block_size + offset) * a.row_bytes();
            store_row(to, a, kernels, a.k + from, scratch);
            store_row(to + half, a, kernels, a.v + from, scratch);
        }
}

}  // namespace labkernels

// The kernels of one variant as a table of functions: what variant.cpp fills, and what operators.hpp calls.
// Each works on a range of rows (or items), so that whoever calls it may split the work; no kernel knows of threads.
#pragma once
#include "labkernels/matrix.hpp"

namespace labkernels {

constexpr int64_t TILE = 64, SPLIT = 512;  // keys

struct AttentionArgs {
    float* out;                  // (tokens, heads, dim)
    const float* q;              // (tokens, heads, dim)
    const float* keys;           // (blocks, kv_heads, block_size, dim)
    const float* values;         // the same
    const int64_t* positions;    // (tokens,)
    const int64_t* sequence_of;  // (tokens,)
    const int64_t* tables;       // block ids of all sequences
    const int64_t* table_start;  // (sequences + 1,)
    int64_t heads, kv_heads, dim, block_size;
    float scale;

    int64_t group() const { return heads / kv_heads; }
    // per query head of a group: running state of the split and of the whole, (max, sum, weighted values) each
    int64_t scratch_floats() const { return 2 * group() * (dim + 2); }
};

struct KernelTable {
    const char* isa;
    void (*rms_norm)(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end);
    void (*add_rms_norm)(float* out, float* total, const float* x, const float* residual, const float* weight, int64_t dim, float eps,
                         int64_t begin, int64_t end);
    void (*linear)(float* out, const float* x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end, int64_t panel_begin, int64_t panel_end,
                   float* scratch);
    void (*rope)(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t heads, int64_t dim,
                 int64_t begin, int64_t end);
    void (*paged_attention)(const AttentionArgs& args, int64_t begin, int64_t end, float* scratch);
    void (*silu_and_mul)(float* out, const float* gate, const float* up, int64_t begin, int64_t end);
};

constexpr int64_t PANEL_GROUP = 4;  // panels of scratch that `linear` may ask for: PANEL_GROUP * columns * PANEL floats

const KernelTable& plain_kernels();
#if defined(LAB_HAS_X86)
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
#endif

}  // namespace labkernels

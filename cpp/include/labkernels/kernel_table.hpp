// The kernels of one variant as a table of functions: what variant.cpp fills, and what operators.hpp calls.
// Each works on a range of rows (or items), so that whoever calls it may split the work; no kernel knows of threads.
#pragma once
#include "labkernels/matrix.hpp"

namespace labkernels {

constexpr int64_t TILE = 64, SPLIT = 512;  // keys

struct AttentionArgs {
    float* out;                // (tokens, heads, dim)
    const float* q;            // (tokens, heads, dim)
    const void* keys;          // (blocks, kv_heads, block_size, dim) float32, or int8 with the 4 bytes of a scale behind each dim
    const void* values;        // the same
    const int64_t* positions;  // (tokens,)
    int64_t heads, kv_heads, dim, block_size;
    bool int8_pool;
    float scale;

    int64_t group() const { return heads / kv_heads; }
    int64_t state_floats(int64_t tokens) const { return tokens * group() * (dim + 2); }
    int64_t scratch_floats() const { return dim * (TILE * (int8_pool ? 3 : 1) + 16); }
};

struct AttentionItem {  // neighbouring queries of one sequence, and one kv head
    int64_t token, tokens, kv_head;
    const int64_t* table;  // block ids of the sequence
};

// A row's numbers stand in arrays (rows,). Its edits, from edit_start[row] on, put values in the place of logits, one an id.
struct SamplingArgs {
    static constexpr int64_t TOKENS = 64;  // a block
    const float* logits;  // (rows, vocab)
    int64_t vocab;
    const double *temperature, *top_p, *min_p, *u;
    const int64_t *top_k, *edit_start, *edit_ids;
    const double* edit_values;
    int64_t* tokens;  // (rows,)
    double* law;      // (rows, vocab), or nullptr: tokens are wanted

    int64_t room() const { return (vocab + TOKENS - 1) / TOKENS * TOKENS; }
    int64_t scratch_floats() const { return 10 * (room() + TOKENS); }  // w, a list of masses and ids, a part of it, logits, sums
};

using RmsNorm = void (*)(float* out, const float* x, const float* weight, int64_t dim, float eps, int64_t begin, int64_t end, bool past_caches);
using Softmax = void (*)(float* out, const float* x, int64_t dim, int64_t begin, int64_t end, bool past_caches, float* scratch);
using TopkSoftmax = void (*)(float* weights, int64_t* ids, const float* x, int64_t experts, int64_t k, bool renormalize, int64_t begin, int64_t end);
using Silu = void (*)(float* out, const float* gate, const float* up, int64_t begin, int64_t end, bool past_caches);
using Sample = void (*)(const SamplingArgs&, int64_t begin, int64_t end, float* scratch);
using Rope = void (*)(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t heads, int64_t dim,
                      int64_t begin, int64_t end, bool past_caches, float* scratch);
// the left operand is x where the matrix is float32, q where it is not
using Matmul = void (*)(float* out, const float* x, const Activations& q, const Matrix& w, const float* bias, int64_t row_begin,
                        int64_t row_end, int64_t panel_begin, int64_t panel_end);

template <class F>
struct Version {
    const char* name;
    F run;
};

struct KernelTable {
    const char* isa;
    RmsNorm rms_norm;
    void (*add_rms_norm)(float* out, float* total, const float* x, const float* residual, const float* weight, int64_t dim, float eps,
                         int64_t begin, int64_t end, bool past_caches);
    Softmax softmax;
    TopkSoftmax topk_softmax;
    Silu silu_and_mul;
    Rope rope;
    void (*quantize_rows)(const Activations& to, const float* x, int64_t columns, int64_t begin, int64_t end);
    int32_t (*quantize_group)(int8_t* q, float* d, float* s, const float* x, int64_t n);
    Matmul matmul;
    void (*attend_split)(const AttentionArgs&, const AttentionItem&, int64_t split, float* states, float* scratch);
    void (*merge_states)(const AttentionArgs&, float* total, float* part, int64_t rows);
    void (*write_attention)(const AttentionArgs&, const AttentionItem&, float* states);
    Sample sample;
    double (*read)(const float* x, int64_t begin, int64_t end);
    void (*copy)(float* out, const float* x, int64_t begin, int64_t end, bool past_caches);
    float (*multiply_adds)(int64_t count);
    int32_t (*int8_dots)(int64_t count);
    // the ladders: reference first, then by increasing skill; the last is the one used above
    Version<RmsNorm> rms_norms[4];
    Version<Softmax> softmaxes[3];
    Version<TopkSoftmax> topk_softmaxes[2];
    Version<Silu> silus[2];
    Rope rope_reference;
    Matmul matmul_reference;
    void (*attention_reference)(const AttentionArgs&, const AttentionItem&, float* scratch);  // used where attend_split is null
    Sample sample_reference;

    // The first rung of every ladder in the place of the last: the operators as they are defined.
    KernelTable reference() const {
        KernelTable table = *this;
        table.rms_norm = rms_norms[1].run;  // the unfused one keeps its squares where the result goes: it cannot run in place
        table.softmax = softmaxes[0].run;
        table.topk_softmax = topk_softmaxes[0].run;
        table.silu_and_mul = silus[0].run;
        table.rope = rope_reference;
        table.matmul = matmul_reference;
        table.attend_split = nullptr;
        table.sample = sample_reference;
        return table;
    }
};

const KernelTable& plain_kernels();
#if defined(LAB_HAS_X86)
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
#endif

}  // namespace labkernels

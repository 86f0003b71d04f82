// The operators with their arguments checked (arguments.hpp): what every door calls.
#pragma once
#include "labkernels/arguments.hpp"
#include "labkernels/operators.hpp"

namespace labkernels::checked {

// Instruction sets this machine runs, best first.
inline std::vector<std::string> variants() {
    std::vector<std::string> names;
    for (const KernelTable* table : runnable_variants()) names.emplace_back(table->isa);
    return names;
}

inline PackedMatrix* from_float32(const ArrayView& weight) {
    const float* w = Arguments("from_float32").in<float>("weight", weight, {"rows", "columns"});
    return new PackedMatrix(Format::f32, weight.shape[0], weight.shape[1], w);
}

inline PackedMatrix* from_int8(const ArrayView& weight, const ArrayView& scales) {
    Arguments check("from_int8");
    const int8_t* w = check.in<int8_t>("weight", weight, {"rows", "columns"});
    if (weight.shape[1] > MAX_INT8_COLUMNS)
        throw ShapeError(check.says("weight") + " has " + std::to_string(weight.shape[1]) + " columns; expected at most " +
                         std::to_string(MAX_INT8_COLUMNS) + ": the sum of a row must fit an int32");
    return new PackedMatrix(weight.shape[0], weight.shape[1], w, check.in<float>("scales", scales, {weight.shape[0]}));
}

inline PackedMatrix* from_blocks(const ArrayView& blocks, const std::string& name) {
    const char* const names[] = {"Q8_0", "Q4_0", "Q4_1"};
    const Format formats[] = {Format::q8_0, Format::q4_0, Format::q4_1};
    for (int i = 0; i < 3; i++)
        if (name == names[i]) {
            const uint8_t* data = Arguments("from_blocks").in<uint8_t>("blocks", blocks, {"rows", "bytes"});
            const int64_t bytes = file_block_bytes(formats[i]);
            if (blocks.shape[1] % bytes)
                throw ShapeError("from_blocks: blocks has shape " + Arguments::text(blocks.shape, 2) + "; expected rows of whole " + name +
                                 " blocks, " + std::to_string(bytes) + " bytes each");
            return new PackedMatrix(formats[i], blocks.shape[0], blocks.shape[1] / bytes * BLOCK, data);
        }
    throw std::invalid_argument("from_blocks: unknown block format '" + name + "'; known: Q8_0, Q4_0, Q4_1");
}

inline void embedding(Operators& ops, const ArrayView& out, const ArrayView& token_ids, const PackedMatrix& weight) {
    Arguments check("embedding");
    const int64_t* ids = check.in<int64_t>("token_ids", token_ids, {"tokens"});
    float* to = check.out<float>("out", out, {token_ids.shape[0], weight.view().columns});
    check.apart();
    ops.embedding(to, ids, token_ids.shape[0], weight.view());
}

inline void rms_norm(Operators& ops, const ArrayView& out, const ArrayView& x, const ArrayView& weight, float eps) {
    Arguments check("rms_norm");
    const float* from = check.in<float>("x", x, {"rows", "dim"});
    const int64_t rows = x.shape[0], dim = x.shape[1];
    const float* w = check.in<float>("weight", weight, {dim});
    float* to = check.out_in_place<float>("out", out, {rows, dim});
    check.apart();
    ops.rms_norm(to, from, w, rows, dim, eps);
}

inline std::vector<std::string> rms_norm_versions(const Operators& ops) {
    std::vector<std::string> names;
    for (const auto& rung : ops.kernels().rms_norms) names.emplace_back(rung.name);
    return names;
}

// One rung of the ladder in rms_norm.hpp, by name: how the kernel above came about. Not in place: the first rung writes early.
inline void rms_norm_version(Operators& ops, const std::string& version, const ArrayView& out, const ArrayView& x, const ArrayView& weight, float eps) {
    Arguments check("rms_norm_version");
    const float* from = check.in<float>("x", x, {"rows", "dim"});
    const int64_t rows = x.shape[0], dim = x.shape[1];
    const float* w = check.in<float>("weight", weight, {dim});
    float* to = check.out<float>("out", out, {rows, dim});
    check.apart();
    std::string known;
    for (const auto& rung : ops.kernels().rms_norms) {
        if (version == rung.name) return ops.rms_norm_version(rung.run, to, from, w, rows, dim, eps);
        known += (known.empty() ? "" : ", ") + std::string(rung.name);
    }
    throw std::invalid_argument("rms_norm_version: there is no version '" + version + "'; known: " + known);
}

inline void add_rms_norm(Operators& ops, const ArrayView& out, const ArrayView& total, const ArrayView& x, const ArrayView& residual,
                         const ArrayView& weight, float eps) {
    Arguments check("add_rms_norm");
    const float* from = check.in<float>("x", x, {"rows", "dim"});
    const int64_t rows = x.shape[0], dim = x.shape[1];
    const float* r = check.in<float>("residual", residual, {rows, dim});
    const float* w = check.in<float>("weight", weight, {dim});
    float* to = check.out<float>("out", out, {rows, dim});
    float* sum = check.out_in_place<float>("total", total, {rows, dim});
    check.apart();
    ops.add_rms_norm(to, sum, from, r, w, rows, dim, eps);
}

inline void linear(Operators& ops, const ArrayView& out, const ArrayView& x, const PackedMatrix& weight, const ArrayView& bias) {
    const Matrix& m = weight.view();
    Arguments check("linear", "weight", m);
    const float* from = check.in<float>("x", x, {"rows", m.columns});
    const float* b = bias.none() ? nullptr : check.in<float>("bias", bias, {m.rows});
    float* to = check.out<float>("out", out, {x.shape[0], m.rows});
    check.apart();
    ops.linear(to, from, x.shape[0], m, b);
}

inline void rope(Operators& ops, const ArrayView& out, const ArrayView& x, const ArrayView& positions, const ArrayView& cos, const ArrayView& sin) {
    Arguments check("rope");
    const float* from = check.in<float>("x", x, {"tokens", "heads", "head_dim"});
    const int64_t tokens = x.shape[0], heads = x.shape[1], dim = x.shape[2], half = dim / 2;
    if (dim % 2) throw ShapeError(check.says("x") + " has shape " + Arguments::text(x.shape, 3) + "; expected an even head_dim");
    const int64_t* p = check.in<int64_t>("positions", positions, {tokens});
    const float* c = check.in<float>("cos", cos, {"max_len", half});
    const float* s = check.in<float>("sin", sin, {cos.shape[0], half});
    float* to = check.out<float>("out", out, {tokens, heads, dim});
    check.apart();
    ops.rope(to, from, p, c, s, tokens, heads, dim, cos.shape[0]);
}

// A pool is float32, or int8 with the bytes of a scale behind each head: {2, blocks, kv_heads, block_size, dim or dim + 4}.
inline bool is_int8(const ArrayView& pool) { return pool.kind == 'i' && pool.itemsize == 1 && !pool.instead; }

inline void store_kv(Operators& ops, const ArrayView& kv, const ArrayView& k, const ArrayView& v, const ArrayView& slot_mapping) {
    Arguments check("store_kv");
    const float* keys = check.in<float>("k", k, {"tokens", "kv_heads", "head_dim"});
    const int64_t tokens = k.shape[0], kv_heads = k.shape[1], dim = k.shape[2];
    const float* values = check.in<float>("v", v, {tokens, kv_heads, dim});
    const int64_t* slots = check.in<int64_t>("slot_mapping", slot_mapping, {tokens});
    void* pool = is_int8(kv) ? (void*)check.out<int8_t>("kv", kv, {int64_t{2}, "blocks", kv_heads, "block_size", dim + 4})
                             : check.out<float>("kv", kv, {int64_t{2}, "blocks", kv_heads, "block_size", dim});
    check.apart();
    ops.store_kv(pool, is_int8(kv), keys, values, slots, tokens, kv.shape[1], kv_heads, kv.shape[3], dim);
}

inline void paged_attention(Operators& ops, const ArrayView& out, const ArrayView& q, const ArrayView& kv, const ArrayView& positions,
                            const ArrayView& query_start, const ArrayView& block_tables, const ArrayView& block_table_start, float scale) {
    Arguments check("paged_attention");
    const float* from = check.in<float>("q", q, {"tokens", "heads", "head_dim"});
    const int64_t tokens = q.shape[0], heads = q.shape[1], dim = q.shape[2];
    const void* pool = is_int8(kv) ? (const void*)check.in<int8_t>("kv", kv, {int64_t{2}, "blocks", "kv_heads", "block_size", dim + 4})
                                   : check.in<float>("kv", kv, {int64_t{2}, "blocks", "kv_heads", "block_size", dim});
    const int64_t blocks = kv.shape[1], kv_heads = kv.shape[2], block_size = kv.shape[3];
    if (kv_heads == 0 || heads % kv_heads)
        throw ShapeError(check.says("q") + " has shape " + Arguments::text(q.shape, 3) + "; expected heads in multiples of the " +
                         std::to_string(kv_heads) + " kv_heads of kv");
    const int64_t* p = check.in<int64_t>("positions", positions, {tokens});
    const int64_t* starts = check.in<int64_t>("query_start", query_start, {"sequences + 1"});
    const int64_t sequences = query_start.shape[0] - 1;
    if (sequences < 0) throw ShapeError(check.says("query_start") + " has shape (0,); expected (sequences + 1,)");
    const int64_t* tables = check.in<int64_t>("block_tables", block_tables, {"blocks of all sequences"});
    const int64_t* table_start = check.in<int64_t>("block_table_start", block_table_start, {sequences + 1});
    float* to = check.out<float>("out", out, {tokens, heads, dim});
    check.apart();
    const void* values = static_cast<const char*>(pool) + kv.nbytes() / 2;
    const Ragged batch{tokens, sequences, block_tables.shape[0], p, starts, tables, table_start};
    const AttentionArgs a{to, from, pool, values, p, heads, kv_heads, dim, block_size, is_int8(kv), scale};
    if (out.size()) ops.paged_attention(a, batch, blocks);
}

inline void softmax(Operators& ops, const ArrayView& out, const ArrayView& x) {
    Arguments check("softmax");
    const float* from = check.in<float>("x", x, {"rows", "dim"});
    float* to = check.out<float>("out", out, {x.shape[0], x.shape[1]});
    check.apart();
    ops.softmax(to, from, x.shape[0], x.shape[1]);
}

inline void topk_softmax(Operators& ops, const ArrayView& weights, const ArrayView& ids, const ArrayView& router_logits, bool renormalize) {
    Arguments check("topk_softmax");
    const float* from = check.in<float>("router_logits", router_logits, {"rows", "num_experts"});
    const int64_t rows = router_logits.shape[0], experts = router_logits.shape[1];
    float* to = check.out<float>("weights", weights, {rows, "k"});
    const int64_t k = weights.shape[1];
    int64_t* chosen = check.out<int64_t>("ids", ids, {rows, k});
    check.apart();
    if (k < 1 || k > experts)
        throw std::invalid_argument("topk_softmax: k is " + std::to_string(k) + "; expected 1 to " + std::to_string(experts) +
                                    ", the experts of router_logits");
    ops.topk_softmax(to, chosen, from, rows, experts, k, renormalize);
}

// The roofs of this machine (ceilings.hpp).
inline double read(Operators& ops, const ArrayView& x) {
    const float* from = Arguments("read").in<float>("x", x, {"count"});
    return ops.read(from, x.shape[0]);
}

inline void copy(Operators& ops, const ArrayView& out, const ArrayView& x) {
    Arguments check("copy");
    const float* from = check.in<float>("x", x, {"count"});
    float* to = check.out<float>("out", out, {x.shape[0]});
    check.apart();
    ops.copy(to, from, x.shape[0]);
}

inline void silu_and_mul(Operators& ops, const ArrayView& out, const ArrayView& gate, const ArrayView& up) {
    Arguments check("silu_and_mul");
    const float* g = check.in<float>("gate", gate, {"rows", "dim"});
    const float* u = check.in<float>("up", up, {gate.shape[0], gate.shape[1]});
    float* to = check.out_in_place<float>("out", out, {gate.shape[0], gate.shape[1]});
    check.apart();
    ops.silu_and_mul(to, g, u, gate.size());
}

}  // namespace labkernels::checked

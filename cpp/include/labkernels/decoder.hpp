// decoder_forward: a whole step of a Llama decoder in one call. The same operators in the same order as model/llama.py, so
// the same bits; what is saved is what lies between them:
//
//   arrays       buffers that stay, instead of some 400 new arrays a step
//   regions      q, k and v are one parallel region; gate, up and silu another, a piece at a time while it is in the cache
//   activations  quantized once for the products that share them
//   rows         behind the last attention only those whose logits are wanted
//
// Per step and layer: 4 or 5 parallel regions for one token (attention has its own once there is enough of it), 12 for many.
#pragma once
#include "labkernels/operators.hpp"

namespace labkernels {

struct Projection {
    Matrix weight;
    const float* bias;  // null: none
};

struct LayerArgs {
    const float *input_norm, *post_norm;
    const float *q_norm, *k_norm;  // (dim,), null: none
    Projection q, k, v, o, gate, up, down;
};

struct DecoderShape {
    int64_t hidden, intermediate, heads, kv_heads, dim;
    float eps;
};

struct KVPool {
    void* data;  // (layers, 2, blocks, kv_heads, block_size, dim), or int8 with dim + 4
    bool int8;
    int64_t blocks, block_size;
};

struct Step {
    Ragged batch;
    const int64_t *token_ids, *slots, *rows;  // rows: whose logits are wanted
    int64_t num_rows;
};

class Decoder {
   public:
    Decoder(Operators& ops, const DecoderShape& shape, std::vector<LayerArgs> layers, const Matrix& embedding, const float* final_norm,
            const Matrix& head, const float* cos, const float* sin, int64_t max_len)
        : ops_(ops), s_(shape), layers_(std::move(layers)), embedding_(embedding), head_(head), final_norm_(final_norm), cos_(cos), sin_(sin),
          max_len_(max_len) {}

    // logits: (step.num_rows, vocabulary). One call at a time.
    void forward(float* logits, const Step& step, const KVPool& kv) {
        const std::lock_guard<std::mutex> one_at_a_time(turn_);
        const int64_t tokens = step.batch.tokens;
        step.batch.check(kv.block_size, kv.blocks);
        check_ids("position", step.batch.positions, tokens, max_len_);
        check_ids("slot", step.slots, tokens, kv.blocks * kv.block_size);
        check_ids("logits row", step.rows, step.num_rows, tokens);
        const int64_t most = std::max(tokens, step.num_rows), wide = std::max(s_.intermediate, s_.heads * s_.dim);
        float* residual = (float*)memory_.at_least(most * 4 * (4 * s_.hidden + 2 * wide + 2 * s_.kv_heads * s_.dim));
        float *x = residual + most * s_.hidden, *y = x + most * s_.hidden, *z = y + most * s_.hidden;
        float *a = z + most * s_.hidden, *b = a + most * wide, *k = b + most * wide, *v = k + most * s_.kv_heads * s_.dim;
        ops_.embedding(residual, step.token_ids, tokens, embedding_);
        int64_t rows = tokens;
        for (size_t i = 0; i < layers_.size(); i++) {
            const LayerArgs& layer = layers_[i];
            if (i == 0) ops_.rms_norm(x, residual, layer.input_norm, rows, s_.hidden, s_.eps);
            else ops_.add_rms_norm(x, residual, y, residual, layer.input_norm, rows, s_.hidden, s_.eps);
            attention(a, x, b, k, v, layer, i, step, kv);
            if (i + 1 == layers_.size()) {  // the last keys are stored: from here on only what is asked for
                rows = step.num_rows;
                take_rows(b, a, step, s_.heads * s_.dim);
                take_rows(z, residual, step, s_.hidden);
                std::swap(a, b);
                std::swap(residual, z);
            }
            linear(y, a, rows, layer.o);
            ops_.add_rms_norm(x, residual, y, residual, layer.post_norm, rows, s_.hidden, s_.eps);
            gate_and_up(a, b, x, rows, layer);
            linear(y, a, rows, layer.down);
        }
        ops_.add_rms_norm(x, residual, y, residual, final_norm_, rows, s_.hidden, s_.eps);
        ops_.linear(logits, x, rows, head_, nullptr);
    }

    int64_t vocabulary() const { return head_.rows; }
    int64_t num_layers() const { return (int64_t)layers_.size(); }
    const DecoderShape& shape() const { return s_; }

   private:
    // out (tokens, heads * dim) of x (tokens, hidden); q, k and v are room
    void attention(float* out, const float* x, float* q, float* k, float* v, const LayerArgs& layer, size_t index, const Step& step,
                   const KVPool& kv) {
        const int64_t tokens = step.batch.tokens, dim = s_.dim, row_bytes = kv.int8 ? dim + 4 : dim * 4;
        const Product list[] = {{q, &layer.q.weight, layer.q.bias}, {k, &layer.k.weight, layer.k.bias}, {v, &layer.v.weight, layer.v.bias}};
        projections(list, x, tokens);
        if (layer.q_norm) ops_.rms_norm(q, q, layer.q_norm, tokens * s_.heads, dim, s_.eps);
        if (layer.k_norm) ops_.rms_norm(k, k, layer.k_norm, tokens * s_.kv_heads, dim, s_.eps);
        ops_.over_rows(tokens, s_.heads * dim, [&](int64_t begin, int64_t end) {
            ops_.kernels().rope(q, q, step.batch.positions, cos_, sin_, s_.heads, dim, begin, end, false, nullptr);
            ops_.kernels().rope(k, k, step.batch.positions, cos_, sin_, s_.kv_heads, dim, begin, end, false, nullptr);
        });
        const int64_t half = kv.blocks * s_.kv_heads * kv.block_size * row_bytes;
        uint8_t* pool = (uint8_t*)kv.data + 2 * half * (int64_t)index;
        ops_.store_kv(pool, kv.int8, k, v, step.slots, tokens, kv.blocks, s_.kv_heads, kv.block_size, dim);
        ops_.attend({out, q, pool, pool + half, step.batch.positions, s_.heads, s_.kv_heads, dim, kv.block_size, kv.int8,
                     (float)(1.0 / std::sqrt((double)dim))},
                    step.batch);
    }

    // a = silu(gate x) * (up x), piece by piece: some outputs of gate, the same of up, and their product
    void gate_and_up(float* a, float* b, const float* x, int64_t rows, const LayerArgs& layer) {
        const Matrix &gate = layer.gate.weight, &up = layer.up.weight;
        if (gate.format != up.format) {
            linear(a, x, rows, layer.gate);
            linear(b, x, rows, layer.up);
            return ops_.silu_and_mul(a, a, b, rows * gate.rows);
        }
        const Product product{a, &gate, layer.gate.bias};
        ops_.products(&product, 1, x, rows, [&](const Activations& q, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
            const KernelTable& kernels = ops_.kernels();
            kernels.matmul(b, x, q, up, layer.up.bias, row, row_end, panel, panel_end);
            for (; row < row_end; row++) {
                float *g = a + row * gate.rows, *u = b + row * gate.rows;
                kernels.silu_and_mul(g, g, u, panel * PANEL, std::min(gate.rows, panel_end * PANEL), false);
            }
        });
    }

    // q, k and v in one region where they quantize x in the same groups
    void projections(const Product (&list)[3], const float* x, int64_t rows) {
        const int64_t groups = list[0].weight->groups();
        if (list[1].weight->groups() == groups && list[2].weight->groups() == groups)
            return ops_.products(list, 3, x, rows, [](const Activations&, int64_t, int64_t, int64_t, int64_t) {});
        for (const Product& p : list) ops_.linear(p.out, x, rows, *p.weight, p.bias);
    }

    void linear(float* out, const float* x, int64_t rows, const Projection& p) { ops_.linear(out, x, rows, p.weight, p.bias); }

    static void take_rows(float* to, const float* from, const Step& step, int64_t width) {
        for (int64_t i = 0; i < step.num_rows; i++) std::memcpy(to + i * width, from + step.rows[i] * width, (size_t)width * 4);
    }

    Operators& ops_;
    DecoderShape s_;
    std::vector<LayerArgs> layers_;
    Matrix embedding_, head_;
    const float *final_norm_, *cos_, *sin_;
    int64_t max_len_;
    AlignedBytes memory_;
    std::mutex turn_;
};

}  // namespace labkernels

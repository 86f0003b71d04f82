// The operators of a decoder, as a caller sees them: one variant of the kernels, one team of threads, indices checked.
// Shapes are the caller's duty (checked.hpp checks them); ids that would read or write outside an array raise here.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "labkernels/dispatch.hpp"
#include "labkernels/embedding.hpp"
#include "labkernels/store_kv.hpp"
#include "labkernels/thread_pool.hpp"

namespace labkernels {

// A weight matrix that owns its panels.
class PackedMatrix {
   public:
    PackedMatrix(Format format, int64_t rows, int64_t columns, const void* source) : PackedMatrix(Matrix{format, rows, columns, nullptr}) {
        if (format == Format::f32) pack_f32(bytes_.get(), static_cast<const float*>(source), shape_, 0, shape_.panels());
        else pack_blocks(bytes_.get(), static_cast<const uint8_t*>(source), shape_, 0, shape_.panels());
    }
    // int8 weights with a scale per row
    PackedMatrix(int64_t rows, int64_t columns, const int8_t* source, const float* scales)
        : PackedMatrix(Matrix{Format::int8, rows, columns, nullptr}) {
        pack_int8(bytes_.get(), source, scales, shape_);
    }
    const Matrix& view() const { return shape_; }
    int64_t nbytes() const { return shape_.panels() * shape_.panel_bytes(); }

   private:
    explicit PackedMatrix(Matrix shape) : shape_(shape), bytes_(nbytes()) { shape_.data = bytes_.get(); }
    Matrix shape_;
    AlignedBytes bytes_;
};

inline void check_ids(const char* what, const int64_t* ids, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= limit)
            throw std::invalid_argument(std::string(what) + " " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                        " is outside [0, " + std::to_string(limit) + ")");
}

// Which rows and which blocks belong to which sequence (see api.ForwardBatch).
struct Ragged {
    int64_t tokens, sequences, table_length;
    const int64_t *positions, *query_start, *tables, *table_start;

    void check(int64_t block_size, int64_t blocks) const {
        check_ids("block id", tables, table_length, blocks);
        for (int64_t s = 0; s < sequences; s++) {
            if (!ascends(query_start + s, tokens) || !ascends(table_start + s, table_length))
                throw std::invalid_argument("paged_attention: query_start or block_table_start descends or leaves its array at sequence " +
                                            std::to_string(s));
            const int64_t held = (table_start[s + 1] - table_start[s]) * block_size;
            check_ids("paged_attention: position", positions + query_start[s], query_start[s + 1] - query_start[s], held);
            for (int64_t t = query_start[s] + 1; t < query_start[s + 1]; t++)
                if (positions[t] < positions[t - 1])
                    throw std::invalid_argument("paged_attention: positions descend inside sequence " + std::to_string(s));
        }
        if (query_start[0] != 0 || query_start[sequences] != tokens)
            throw std::invalid_argument("paged_attention: query_start must run from 0 to the number of tokens");
    }

   private:
    static bool ascends(const int64_t* start, int64_t end) { return 0 <= start[0] && start[0] <= start[1] && start[1] <= end; }
};

// One product of several that share their left operand.
struct Product {
    float* out;
    const Matrix* weight;
    const float* bias;
};

class Operators {
   public:
    Operators(const std::string& isa, int threads, bool reference = false)
        : kernels_(reference ? variant(isa).reference() : variant(isa)), pool_(threads) {}

    const char* isa() const { return kernels_.isa; }
    int threads() const { return pool_.size(); }
    const KernelTable& kernels() const { return kernels_; }

    void embedding(float* out, const int64_t* ids, int64_t count, const Matrix& w) {
        check_ids("token id", ids, count, w.rows);
        over_rows(count, w.columns, [&](int64_t begin, int64_t end) { labkernels::embedding(out, ids, w, begin, end); });
    }

    void rms_norm(float* out, const float* x, const float* weight, int64_t rows, int64_t dim, float eps) {
        rms_norm_version(kernels_.rms_norm, out, x, weight, rows, dim, eps);
    }
    void rms_norm_version(RmsNorm version, float* out, const float* x, const float* weight, int64_t rows, int64_t dim, float eps) {
        over_rows(rows, dim, [&](int64_t begin, int64_t end) { version(out, x, weight, dim, eps, begin, end, past_caches(rows * dim)); });
    }

    void add_rms_norm(float* out, float* total, const float* x, const float* residual, const float* weight, int64_t rows, int64_t dim, float eps) {
        over_rows(rows, dim, [&](int64_t begin, int64_t end) {
            kernels_.add_rms_norm(out, total, x, residual, weight, dim, eps, begin, end, past_caches(rows * dim));
        });
    }

    void softmax(float* out, const float* x, int64_t rows, int64_t dim) { softmax_version(kernels_.softmax, out, x, rows, dim); }
    void softmax_version(Softmax version, float* out, const float* x, int64_t rows, int64_t dim) {
        pool_.run(rows, rows_worth(dim), dim, [&](int64_t begin, int64_t end, float* scratch) {
            version(out, x, dim, begin, end, past_caches(rows * dim), scratch);
        });
    }

    void topk_softmax(float* weights, int64_t* ids, const float* x, int64_t rows, int64_t experts, int64_t k, bool renormalize) {
        pool_.run(rows, rows_worth(experts + k), 0, [&](int64_t begin, int64_t end, float*) {
            kernels_.topk_softmax(weights, ids, x, experts, k, renormalize, begin, end);
        });
    }

    void linear(float* out, const float* x, int64_t rows, const Matrix& w, const float* bias) {
        const Product one{out, &w, bias};
        products(&one, 1, x, rows, [](const Activations&, int64_t, int64_t, int64_t, int64_t) {});
    }

    // Products that share x, in one parallel region; all in float32, or all quantized in the same groups. What is shared out is
    // (chunk of rows, group of panels): a chunk streams the weights from memory once, its rows from the caches. `then` is
    // called with the left operand, the rows and the panels that were just computed, for what is best done while they are at hand.
    template <class Then>
    void products(const Product* list, int count, const float* x, int64_t rows, const Then& then) {
        const Matrix& first = *list[0].weight;
        const Activations q = quantized(x, rows, first);
        int64_t units = 0;
        for (int i = 0; i < count; i++) units += units_of(*list[i].weight);
        const int64_t chunks = (rows + ROW_CHUNK - 1) / ROW_CHUNK, work = std::min(rows, ROW_CHUNK) * first.columns * unit_of(first) * PANEL;
        const int64_t grain = 1 + (first.format == Format::f32 ? MIN_WORK : MIN_INT_WORK) / (work + 1);
        pool_.run(chunks * units, grain, 0, [&](int64_t begin, int64_t end, float*) {
            for (int64_t at = begin; at < end; at++) {
                int64_t unit = at % units;
                const Product* product = list;
                for (; unit >= units_of(*product->weight); product++) unit -= units_of(*product->weight);
                const Matrix& w = *product->weight;
                const int64_t row = at / units * ROW_CHUNK, row_end = std::min(rows, row + ROW_CHUNK);
                const int64_t panel = unit * unit_of(w), panel_end = std::min(w.panels(), panel + unit_of(w));
                kernels_.matmul(product->out, x, q, w, product->bias, row, row_end, panel, panel_end);
                then(q, row, row_end, panel, panel_end);
            }
        });
    }

    void rope(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t tokens, int64_t heads,
              int64_t dim, int64_t table_rows) {
        check_ids("position", positions, tokens, table_rows);
        pool_.run(tokens, rows_worth(heads * dim), heads * dim, [&](int64_t begin, int64_t end, float* scratch) {
            kernels_.rope(out, x, positions, cos, sin, heads, dim, begin, end, past_caches(tokens * heads * dim), scratch);
        });
    }

    void store_kv(void* kv, bool int8_pool, const float* k, const float* v, const int64_t* slots, int64_t tokens, int64_t blocks, int64_t kv_heads,
                  int64_t block_size, int64_t dim) {
        check_ids("slot", slots, tokens, blocks * block_size);
        const StoreArgs a{kv, int8_pool, k, v, slots, blocks, kv_heads, block_size, dim};
        pool_.run(tokens, rows_worth(2 * kv_heads * dim), a.scratch_floats(),
                  [&](int64_t begin, int64_t end, float* scratch) { labkernels::store_kv(a, kernels_, begin, end, scratch); });
    }

    void paged_attention(const AttentionArgs& a, const Ragged& batch, int64_t blocks) {
        batch.check(a.block_size, blocks);
        attend(a, batch);
    }

    // As paged_attention, for a batch that was checked. A work item is a block of a sequence's queries and a kv head; where
    // there are too few for the threads (a long context, decoded alone), its splits of 512 keys are shared out too.
    void attend(const AttentionArgs& a, const Ragged& batch) {
        std::vector<AttentionItem> items;
        int64_t splits = 1, most_tokens = 0, last = 0;
        for (int64_t s = 0; s < batch.sequences; s++)
            for (int64_t t = batch.query_start[s]; t < batch.query_start[s + 1]; t += QUERY_BLOCK)
                for (int64_t head = 0; head < a.kv_heads; head++)
                    items.push_back({t, std::min(QUERY_BLOCK, batch.query_start[s + 1] - t), head, batch.tables + batch.table_start[s]});
        const auto splits_of = [&](const AttentionItem& i) { return a.positions[i.token + i.tokens - 1] / SPLIT + 1; };
        for (const AttentionItem& item : items) {
            splits = std::max(splits, splits_of(item));
            most_tokens = std::max(most_tokens, item.tokens);
            last = std::max(last, a.positions[item.token + item.tokens - 1]);
        }
        if (!kernels_.attend_split)
            return pool_.run((int64_t)items.size(), 1, a.dim + last + 1, [&](int64_t begin, int64_t end, float* scratch) {
                for (int64_t i = begin; i < end; i++) kernels_.attention_reference(a, items[i], scratch);
            });
        const int64_t state = a.state_floats(most_tokens), grain = 1 + MIN_WORK / (4 * (last + 1) * a.dim * a.group());
        if (splits > 1 && (int64_t)items.size() < 4 * pool_.size()) {
            float* parts = (float*)partial_.at_least((int64_t)items.size() * splits * state * 4);
            pool_.run((int64_t)items.size() * splits, 1, a.scratch_floats(), [&](int64_t begin, int64_t end, float* scratch) {
                for (int64_t at = begin; at < end; at++)
                    if (at % splits < splits_of(items[at / splits]))
                        kernels_.attend_split(a, items[at / splits], at % splits, parts + at * state, scratch);
            });
            for (int64_t i = 0; i < (int64_t)items.size(); i++) {
                float* first = parts + i * splits * state;
                for (int64_t split = 1; split < splits_of(items[i]); split++)
                    kernels_.merge_states(a, first, first + split * state, items[i].tokens * a.group());
                kernels_.write_attention(a, items[i], first);
            }
            return;
        }
        pool_.run((int64_t)items.size(), grain, a.scratch_floats() + 2 * state, [&](int64_t begin, int64_t end, float* scratch) {
            float *total = scratch + a.scratch_floats(), *part = total + state;
            for (int64_t i = begin; i < end; i++) {
                kernels_.attend_split(a, items[i], 0, total, scratch);
                for (int64_t split = 1; split < splits_of(items[i]); split++) {
                    kernels_.attend_split(a, items[i], split, part, scratch);
                    kernels_.merge_states(a, total, part, items[i].tokens * a.group());
                }
                kernels_.write_attention(a, items[i], total);
            }
        });
    }

    void silu_and_mul(float* out, const float* gate, const float* up, int64_t count) { silu_version(kernels_.silu_and_mul, out, gate, up, count); }
    void silu_version(Silu version, float* out, const float* gate, const float* up, int64_t count) {
        pool_.run(count, MIN_WORK, 0, [&](int64_t begin, int64_t end, float*) { version(out, gate, up, begin, end, past_caches(count)); });
    }

    // Tokens, or the law they are drawn from.
    void sample(const SamplingArgs& a, int64_t rows) {
        pool_.run(rows, rows_worth(a.vocab), a.scratch_floats(), [&](int64_t begin, int64_t end, float* scratch) {
            kernels_.sample(a, begin, end, scratch);
        });
    }

    // rows of work, in chunks that are worth a thread
    template <class Work>
    void over_rows(int64_t rows, int64_t dim, const Work& work) {
        pool_.run(rows, rows_worth(dim), 0, [&](int64_t begin, int64_t end, float*) { work(begin, end); });
    }

    // The roofs of this machine: see ceilings.hpp.
    double read(const float* x, int64_t count) {
        double total = 0;
        std::mutex adding;
        pool_.run(count, 1 << 18, 0, [&](int64_t begin, int64_t end, float*) {
            const double part = kernels_.read(x, begin, end);
            const std::lock_guard<std::mutex> lock(adding);
            total += part;
        });
        return total;
    }
    void copy(float* out, const float* x, int64_t count) {
        pool_.run(count, 1 << 18, 0, [&](int64_t begin, int64_t end, float*) { kernels_.copy(out, x, begin, end, past_caches(count)); });
    }
    float multiply_adds(int64_t count) {
        std::atomic<int64_t> total{0};
        pool_.run(count, 1 << 20, 0, [&](int64_t begin, int64_t end, float*) { total += (int64_t)kernels_.multiply_adds(end - begin); });
        return (float)total;
    }
    int64_t int8_dots(int64_t count) {
        std::atomic<int64_t> total{0};
        pool_.run(count, 1 << 22, 0, [&](int64_t begin, int64_t end, float*) { total += kernels_.int8_dots(end - begin); });
        return total;
    }

   private:
    static constexpr int64_t ROW_CHUNK = 512, QUERY_BLOCK = 16;
    static constexpr int64_t MIN_WORK = 16384, MIN_INT_WORK = 65536;  // elements below which waking a thread costs more than it brings

    static int64_t rows_worth(int64_t dim) { return MIN_WORK / (dim + 1) + 1; }
    // panels that a kernel takes at once
    static int64_t unit_of(const Matrix& w) { return w.format == Format::f32 || w.format == Format::int8 ? 4 : 2; }
    static int64_t units_of(const Matrix& w) { return (w.panels() + unit_of(w) - 1) / unit_of(w); }
    static bool past_caches(int64_t floats) { return floats >= 1 << 22; }  // 16 MB

    Activations quantized(const float* x, int64_t rows, const Matrix& w) {
        const int64_t groups = w.groups(), stride = (w.columns + 15) / 16 * 16;
        if (groups == 0) return {};
        uint8_t* at = activations_.at_least(rows * (stride + 12 * groups));
        const Activations q{(int8_t*)at, (float*)(at + rows * stride), (float*)(at + rows * (stride + 4 * groups)),
                            (int32_t*)(at + rows * (stride + 8 * groups)), groups, stride};
        pool_.run(rows, 1 + 2048 / (w.columns + 1), 0,
                  [&](int64_t begin, int64_t end, float*) { kernels_.quantize_rows(q, x, w.columns, begin, end); });
        return q;
    }

    const KernelTable kernels_;
    ThreadPool pool_;
    static inline thread_local AlignedBytes activations_, partial_;  // of the calling thread: callers do not meet
};

}  // namespace labkernels

// The operators of a decoder, as a caller sees them: one variant of the kernels, one team of threads, indices checked.
// Shapes are the caller's duty (the bindings check them); ids that would read or write outside an array raise here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "labkernels/dispatch.hpp"
#include "labkernels/pack.hpp"
#include "labkernels/thread_pool.hpp"

namespace labkernels {

// 64-byte aligned memory: a panel row is one cache line.
class AlignedBytes {
   public:
    explicit AlignedBytes(int64_t bytes) : data_(static_cast<uint8_t*>(::operator new((size_t)bytes, std::align_val_t(64)))) {}
    uint8_t* get() const { return data_.get(); }

   private:
    struct Free {
        void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<uint8_t, Free> data_;
};

// A weight matrix that owns its panels.
class PackedMatrix {
   public:
    PackedMatrix(Format format, int64_t rows, int64_t columns, const void* source)
        : shape_{format, rows, columns, nullptr}, bytes_(shape_.panels() * shape_.panel_bytes()) {
        shape_.data = bytes_.get();
        if (format == Format::f32) pack_f32(bytes_.get(), static_cast<const float*>(source), shape_);
        else pack_blocks(bytes_.get(), static_cast<const uint8_t*>(source), shape_);
    }
    const Matrix& view() const { return shape_; }
    int64_t nbytes() const { return shape_.panels() * shape_.panel_bytes(); }

   private:
    Matrix shape_;
    AlignedBytes bytes_;
};

inline void check_ids(const char* what, const int64_t* ids, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= limit)
            throw std::invalid_argument(std::string(what) + " " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                        " is outside [0, " + std::to_string(limit) + ")");
}

class Operators {
   public:
    Operators(const std::string& isa, int threads) : kernels_(variant(isa)), pool_(threads) {}

    const char* isa() const { return kernels_.isa; }
    int threads() const { return pool_.size(); }

    void embedding(float* out, const int64_t* ids, int64_t count, const Matrix& w) {
        check_ids("token id", ids, count, w.rows);
        pool_.run(count, rows_worth(w.columns), 0, [&](int64_t begin, int64_t end, float*) {
            for (int64_t i = begin; i < end; i++) unpack_row(out + i * w.columns, w, ids[i]);
        });
    }

    void rms_norm(float* out, const float* x, const float* weight, int64_t rows, int64_t dim, float eps) {
        pool_.run(rows, rows_worth(dim), 0, [&](int64_t begin, int64_t end, float*) { kernels_.rms_norm(out, x, weight, dim, eps, begin, end); });
    }

    void add_rms_norm(float* out, float* total, const float* x, const float* residual, const float* weight, int64_t rows, int64_t dim, float eps) {
        pool_.run(rows, rows_worth(dim), 0, [&](int64_t begin, int64_t end, float*) {
            kernels_.add_rms_norm(out, total, x, residual, weight, dim, eps, begin, end);
        });
    }

    // Work is shared out by (chunk of 512 rows, panel): a chunk streams the weights from memory once, its rows from the caches.
    void linear(float* out, const float* x, int64_t rows, const Matrix& w, const float* bias) {
        const int64_t panels = w.panels(), chunks = (rows + ROW_CHUNK - 1) / ROW_CHUNK;
        const int64_t grain = std::max<int64_t>(PANEL_GROUP, MIN_WORK / (std::min(rows, ROW_CHUNK) * w.columns + 1));
        const int64_t expanded = w.format == Format::f32 ? 0 : PANEL_GROUP * w.columns * PANEL;
        pool_.run(chunks * panels, grain, expanded, [&](int64_t begin, int64_t end, float* scratch) {
            for (int64_t at = begin; at < end;) {
                const int64_t chunk = at / panels, panel = at % panels, stop = std::min(panels, panel + end - at);
                kernels_.linear(out, x, w, bias, chunk * ROW_CHUNK, std::min(rows, (chunk + 1) * ROW_CHUNK), panel, stop, scratch);
                at += stop - panel;
            }
        });
    }

    void rope(float* out, const float* x, const int64_t* positions, const float* cos, const float* sin, int64_t tokens, int64_t heads,
              int64_t dim, int64_t table_rows) {
        check_ids("position", positions, tokens, table_rows);
        pool_.run(tokens, rows_worth(heads * dim), 0, [&](int64_t begin, int64_t end, float*) {
            kernels_.rope(out, x, positions, cos, sin, heads, dim, begin, end);
        });
    }

    // kv: (2, blocks, kv_heads, block_size, dim); one slot = block * block_size + offset
    void store_kv(float* kv, const float* k, const float* v, const int64_t* slots, int64_t tokens, int64_t blocks, int64_t kv_heads,
                  int64_t block_size, int64_t dim) {
        check_ids("slot", slots, tokens, blocks * block_size);
        float* values = kv + blocks * kv_heads * block_size * dim;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t head = 0; head < kv_heads; head++) {
                const int64_t at = ((slots[t] / block_size * kv_heads + head) * block_size + slots[t] % block_size) * dim;
                std::memcpy(kv + at, k + (t * kv_heads + head) * dim, (size_t)dim * 4);
                std::memcpy(values + at, v + (t * kv_heads + head) * dim, (size_t)dim * 4);
            }
    }

    void paged_attention(AttentionArgs a, int64_t tokens, const int64_t* query_start, int64_t sequences, int64_t table_length, int64_t blocks) {
        check_ids("block id", a.tables, table_length, blocks);
        std::vector<int64_t> sequence_of((size_t)tokens);
        for (int64_t s = 0; s < sequences; s++) {
            if (!ascends(query_start + s, tokens) || !ascends(a.table_start + s, table_length))
                throw std::invalid_argument("paged_attention: query_start or block_table_start descends or leaves its array at sequence " +
                                            std::to_string(s));
            const int64_t held = (a.table_start[s + 1] - a.table_start[s]) * a.block_size;
            check_ids("paged_attention: position", a.positions + query_start[s], query_start[s + 1] - query_start[s], held);
            for (int64_t t = query_start[s]; t < query_start[s + 1]; t++) sequence_of[(size_t)t] = s;
        }
        if (query_start[0] != 0 || query_start[sequences] != tokens)
            throw std::invalid_argument("paged_attention: query_start must run from 0 to the number of tokens");
        a.sequence_of = sequence_of.data();
        pool_.run(tokens * a.kv_heads, 1, a.scratch_floats(), [&](int64_t begin, int64_t end, float* scratch) {
            kernels_.paged_attention(a, begin, end, scratch);
        });
    }

    void silu_and_mul(float* out, const float* gate, const float* up, int64_t count) {
        pool_.run(count, MIN_WORK, 0, [&](int64_t begin, int64_t end, float*) { kernels_.silu_and_mul(out, gate, up, begin, end); });
    }

   private:
    static constexpr int64_t ROW_CHUNK = 512;
    static constexpr int64_t MIN_WORK = 16384;  // elements below which waking a thread costs more than it brings

    static bool ascends(const int64_t* start, int64_t end) { return 0 <= start[0] && start[0] <= start[1] && start[1] <= end; }
    static int64_t rows_worth(int64_t dim) { return MIN_WORK / (dim + 1) + 1; }

    const KernelTable& kernels_;
    ThreadPool pool_;
};

}  // namespace labkernels

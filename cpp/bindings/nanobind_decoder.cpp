// decoder_forward through nanobind: the weights are checked once, when the decoder is made; a step's arrays in every call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "buffers.hpp"
#include "labkernels/decoder.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace labkernels;
using doors::Buffer;

namespace {

// The decoder, and the Python objects whose memory it reads.
struct HeldDecoder {
    Decoder decoder;
    std::vector<nb::object> held;
};

class Builder {
   public:
    const float* vector(const char* name, nb::handle array, int64_t size) {
        if (array.is_none()) return nullptr;
        const Buffer buffer(array.ptr());
        held.push_back(nb::borrow(array));
        return Arguments("decoder").in<float>(name, buffer, {size});
    }
    Matrix matrix(const char* name, nb::handle weight, int64_t rows, int64_t columns) {
        const PackedMatrix* packed = nullptr;
        if (!nb::try_cast(weight, packed) || !packed)
            throw TypeError(std::string("decoder: ") + name + " is of type " + nb::type_name(weight.type()).c_str() + "; expected a PackedMatrix");
        const Matrix& m = packed->view();
        if (m.columns != columns || (rows >= 0 && m.rows != rows))
            throw ShapeError(std::string("decoder: ") + name + " has shape (" + std::to_string(m.rows) + ", " + std::to_string(m.columns) +
                             "); expected (" + (rows < 0 ? "vocabulary" : std::to_string(rows)) + ", " + std::to_string(columns) + ")");
        held.push_back(nb::borrow(weight));
        return m;
    }
    // (matrix, bias or None)
    Projection projection(const char* name, nb::handle pair, int64_t rows, int64_t columns) {
        return {matrix(name, pair[0], rows, columns), vector(name, pair[1], rows)};
    }

    std::vector<nb::object> held;
};

HeldDecoder* make(Operators& ops, const DecoderShape& s, nb::list layers, nb::handle embedding, nb::handle final_norm, nb::handle head, nb::handle cos,
                  nb::handle sin) {
    Builder b;
    std::vector<LayerArgs> made;
    const int64_t q_size = s.heads * s.dim, kv_size = s.kv_heads * s.dim;
    for (nb::handle layer : layers)  // in the order of api.LayerWeights
        made.push_back({b.vector("input_norm", layer[0], s.hidden), b.vector("post_norm", layer[1], s.hidden), b.vector("q_norm", layer[2], s.dim),
                        b.vector("k_norm", layer[3], s.dim), b.projection("q", layer[4], q_size, s.hidden),
                        b.projection("k", layer[5], kv_size, s.hidden), b.projection("v", layer[6], kv_size, s.hidden),
                        b.projection("o", layer[7], s.hidden, q_size), b.projection("gate", layer[8], s.intermediate, s.hidden),
                        b.projection("up", layer[9], s.intermediate, s.hidden), b.projection("down", layer[10], s.hidden, s.intermediate)});
    const Buffer cos_buffer(cos.ptr()), sin_buffer(sin.ptr());
    Arguments tables("decoder");
    const float* c = tables.in<float>("cos", cos_buffer, {"positions", s.dim / 2});
    const ArrayView& cos_view = cos_buffer;
    const float* t = tables.in<float>("sin", sin_buffer, {cos_view.shape[0], s.dim / 2});
    b.held.push_back(nb::borrow(cos));
    b.held.push_back(nb::borrow(sin));
    const float* norm = b.vector("final_norm", final_norm, s.hidden);
    const Matrix table = b.matrix("embedding", embedding, -1, s.hidden), output = b.matrix("head", head, -1, s.hidden);
    return new HeldDecoder{{ops, s, std::move(made), table, norm, output, c, t, cos_view.shape[0]}, std::move(b.held)};
}

void forward(HeldDecoder& self, nb::handle logits, nb::handle token_ids, nb::handle positions, nb::handle query_start, nb::handle block_tables,
             nb::handle block_table_start, nb::handle slot_mapping, nb::handle logits_indices, nb::handle kv) {
    const Buffer out(logits.ptr()), ids(token_ids.ptr()), at(positions.ptr()), starts(query_start.ptr()), tables(block_tables.ptr()),
        table_start(block_table_start.ptr()), slots(slot_mapping.ptr()), rows(logits_indices.ptr()), pool(kv.ptr());
    const ArrayView &id_view = ids, &start_view = starts, &table_view = tables, &row_view = rows, &pool_view = pool;
    const DecoderShape& s = self.decoder.shape();
    Arguments check("decoder_forward");
    const int64_t* id = check.in<int64_t>("token_ids", ids, {"tokens"});
    const int64_t tokens = id_view.shape[0], layers = self.decoder.num_layers();
    const int64_t* position = check.in<int64_t>("positions", at, {tokens});
    const int64_t* start = check.in<int64_t>("query_start", starts, {"sequences + 1"});
    if (start_view.shape[0] < 1) throw ShapeError("decoder_forward: query_start is empty; expected (sequences + 1,)");
    const int64_t* table = check.in<int64_t>("block_tables", tables, {"blocks of all sequences"});
    const int64_t* block_start = check.in<int64_t>("block_table_start", table_start, {start_view.shape[0]});
    const int64_t* slot = check.in<int64_t>("slot_mapping", slots, {tokens});
    const int64_t* row = check.in<int64_t>("logits_indices", rows, {"rows"});
    float* to = check.out<float>("logits", out, {row_view.shape[0], self.decoder.vocabulary()});
    const bool int8 = checked::is_int8(pool);
    void* data = int8 ? (void*)check.out<int8_t>("kv", pool, {layers, int64_t{2}, "blocks", s.kv_heads, "block_size", s.dim + 4})
                      : (void*)check.out<float>("kv", pool, {layers, int64_t{2}, "blocks", s.kv_heads, "block_size", s.dim});
    check.apart();
    const Step step{{tokens, start_view.shape[0] - 1, table_view.shape[0], position, start, table, block_start}, id, slot, row, row_view.shape[0]};
    const doors::Unlocked unlocked(1 << 30);
    self.decoder.forward(to, step, {data, int8, pool_view.shape[2], pool_view.shape[4]});
}

}  // namespace

void bind_decoder(nb::module_& m) {
    nb::class_<HeldDecoder>(m, "Decoder", "A whole step in one call; the bits are those of the operators, one by one.")
        .def_static(
            "of",
            [](Operators& ops, int64_t hidden, int64_t intermediate, int64_t heads, int64_t kv_heads, int64_t dim, float eps, nb::list layers,
               nb::handle embedding, nb::handle final_norm, nb::handle head, nb::handle cos, nb::handle sin) {
                return make(ops, {hidden, intermediate, heads, kv_heads, dim, eps}, layers, embedding, final_norm, head, cos, sin);
            },
            nb::keep_alive<0, 1>())
        .def("forward", &forward, "logits"_a, "token_ids"_a, "positions"_a, "query_start"_a, "block_tables"_a, "block_table_start"_a,
             "slot_mapping"_a, "logits_indices"_a, "kv"_a, "Writes logits (rows, vocabulary), and the tokens' K and V into kv.");
}

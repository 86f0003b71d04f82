// The nanobind door: checks dtype, shape, contiguity and device, calls, and never copies. The GIL is released while kernels run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "labkernels/operators.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace labkernels;

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <int N>
using In = Array<const float, N>;
template <int N>
using Out = Array<float, N>;
using Ids = Array<const int64_t, 1>;

static std::string shape_text(const size_t* shape, size_t ndim) {
    std::string text = "(";
    for (size_t i = 0; i < ndim; i++) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + ")";
}

// Raises unless `array` has the expected shape.
template <class A>
static void expect(const char* what, const A& array, std::vector<size_t> expected) {
    bool same = array.ndim() == expected.size();
    std::vector<size_t> got;
    for (size_t i = 0; i < array.ndim(); i++) {
        got.push_back(array.shape(i));
        same = same && got[i] == expected[i];
    }
    if (!same)
        throw nb::value_error((std::string(what) + " has shape " + shape_text(got.data(), got.size()) + "; expected " +
                               shape_text(expected.data(), expected.size()))
                                  .c_str());
}

static Format format_of(const std::string& name) {
    if (name == "Q8_0") return Format::q8_0;
    if (name == "Q4_0") return Format::q4_0;
    if (name == "Q4_1") return Format::q4_1;
    throw nb::value_error(("unknown block format '" + name + "'; known: Q8_0, Q4_0, Q4_1").c_str());
}

static PackedMatrix* pack_blocks_checked(Array<const uint8_t, 2> blocks, const std::string& name) {
    const Format format = format_of(name);
    const size_t bytes = (size_t)file_block_bytes(format);
    if (blocks.shape(1) % bytes)
        throw nb::value_error(("a row of " + name + " is whole blocks of " + std::to_string(bytes) + " bytes; got " +
                               std::to_string(blocks.shape(1)) + " bytes")
                                  .c_str());
    return new PackedMatrix(format, (int64_t)blocks.shape(0), (int64_t)(blocks.shape(1) / bytes) * BLOCK, blocks.data());
}


NB_MODULE(_nanobind, m) {
    nb::set_leak_warnings(false);  // a backend that a global still holds when Python ends is not a leak
    m.doc() = "The operators of a decoder in C++ (see cpp/include/labkernels).";
    m.def("variants", [] {
        std::vector<std::string> names;
        for (const KernelTable* table : runnable_variants()) names.emplace_back(table->isa);
        return names;
    }, "Instruction sets this machine runs, best first.");

    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix (rows, columns) packed in panels of 16 rows; immutable.")
        .def_static("from_float32", [](In<2> w) {
            return new PackedMatrix(Format::f32, (int64_t)w.shape(0), (int64_t)w.shape(1), w.data());
        }, nb::arg("weight").noconvert())
        .def_static("from_blocks", &pack_blocks_checked, nb::arg("blocks").noconvert(), "format"_a)
        .def_prop_ro("shape", [](const PackedMatrix& p) { return nb::make_tuple(p.view().rows, p.view().columns); })
        .def_prop_ro("nbytes", &PackedMatrix::nbytes);

    using GIL = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Operators>(m, "Operators", "One variant of the kernels and one team of threads.")
        .def(nb::init<const std::string&, int>(), "isa"_a, "threads"_a)
        .def_prop_ro("isa", &Operators::isa)
        .def_prop_ro("threads", &Operators::threads)
        .def("embedding", [](Operators& ops, Out<2> out, Ids ids, const PackedMatrix& w) {
            expect("embedding: out", out, {ids.shape(0), (size_t)w.view().columns});
            ops.embedding(out.data(), ids.data(), (int64_t)ids.shape(0), w.view());
        }, nb::arg("out").noconvert(), nb::arg("token_ids").noconvert(), "weight"_a, GIL())
        .def("rms_norm", [](Operators& ops, Out<2> out, In<2> x, In<1> weight, float eps) {
            expect("rms_norm: weight", weight, {x.shape(1)});
            expect("rms_norm: out", out, {x.shape(0), x.shape(1)});
            ops.rms_norm(out.data(), x.data(), weight.data(), (int64_t)x.shape(0), (int64_t)x.shape(1), eps);
        }, nb::arg("out").noconvert(), nb::arg("x").noconvert(), nb::arg("weight").noconvert(), "eps"_a, GIL())
        .def("add_rms_norm", [](Operators& ops, Out<2> out, Out<2> total, In<2> x, In<2> residual, In<1> weight, float eps) {
            expect("add_rms_norm: weight", weight, {x.shape(1)});
            expect("add_rms_norm: residual", residual, {x.shape(0), x.shape(1)});
            expect("add_rms_norm: out", out, {x.shape(0), x.shape(1)});
            expect("add_rms_norm: total", total, {x.shape(0), x.shape(1)});
            ops.add_rms_norm(out.data(), total.data(), x.data(), residual.data(), weight.data(), (int64_t)x.shape(0), (int64_t)x.shape(1), eps);
        }, nb::arg("out").noconvert(), nb::arg("total").noconvert(), nb::arg("x").noconvert(), nb::arg("residual").noconvert(),
           nb::arg("weight").noconvert(), "eps"_a, GIL())
        .def("linear", [](Operators& ops, Out<2> out, In<2> x, const PackedMatrix& w, std::optional<In<1>> bias) {
            if (bias) expect("linear: bias", *bias, {(size_t)w.view().rows});
            expect("linear: x", x, {x.shape(0), (size_t)w.view().columns});
            expect("linear: out", out, {x.shape(0), (size_t)w.view().rows});
            ops.linear(out.data(), x.data(), (int64_t)x.shape(0), w.view(), bias ? bias->data() : nullptr);
        }, nb::arg("out").noconvert(), nb::arg("x").noconvert(), "weight"_a, nb::arg("bias").noconvert().none() = nb::none(), GIL())
        .def("rope", [](Operators& ops, Out<3> out, In<3> x, Ids positions, In<2> cos, In<2> sin) {
            const size_t half = x.shape(2) / 2;
            if (x.shape(2) % 2) throw nb::value_error("rope: head_dim must be even");
            expect("rope: positions", positions, {x.shape(0)});
            expect("rope: cos", cos, {cos.shape(0), half});
            expect("rope: sin", sin, {cos.shape(0), half});
            expect("rope: out", out, {x.shape(0), x.shape(1), x.shape(2)});
            ops.rope(out.data(), x.data(), positions.data(), cos.data(), sin.data(), (int64_t)x.shape(0), (int64_t)x.shape(1),
                     (int64_t)x.shape(2), (int64_t)cos.shape(0));
        }, nb::arg("out").noconvert(), nb::arg("x").noconvert(), nb::arg("positions").noconvert(), nb::arg("cos").noconvert(),
           nb::arg("sin").noconvert(), GIL())
        .def("store_kv", [](Operators& ops, Out<5> kv, In<3> k, In<3> v, Ids slots) {
            expect("store_kv: kv", kv, {2, kv.shape(1), k.shape(1), kv.shape(3), k.shape(2)});
            expect("store_kv: v", v, {k.shape(0), k.shape(1), k.shape(2)});
            expect("store_kv: slot_mapping", slots, {k.shape(0)});
            ops.store_kv(kv.data(), k.data(), v.data(), slots.data(), (int64_t)k.shape(0), (int64_t)kv.shape(1), (int64_t)k.shape(1),
                         (int64_t)kv.shape(3), (int64_t)k.shape(2));
        }, nb::arg("kv").noconvert(), nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("slot_mapping").noconvert(), GIL())
        .def("paged_attention", [](Operators& ops, Out<3> out, In<3> q, In<5> kv, Ids positions, Ids query_start, Ids tables, Ids table_start,
                                   float scale) {
            const size_t tokens = q.shape(0), heads = q.shape(1), dim = q.shape(2), kv_heads = kv.shape(2), sequences = query_start.shape(0) - 1;
            if (query_start.shape(0) < 1) throw nb::value_error("paged_attention: query_start is empty; expected (sequences + 1,)");
            if (kv_heads == 0 || heads % kv_heads)
                throw nb::value_error("paged_attention: the number of query heads must be a multiple of the number of kv heads");
            expect("paged_attention: kv", kv, {2, kv.shape(1), kv_heads, kv.shape(3), dim});
            expect("paged_attention: positions", positions, {tokens});
            expect("paged_attention: block_table_start", table_start, {sequences + 1});
            expect("paged_attention: out", out, {tokens, heads, dim});
            const float* values = kv.data() + kv.shape(1) * kv_heads * kv.shape(3) * dim;
            ops.paged_attention({out.data(), q.data(), kv.data(), values, positions.data(), nullptr, tables.data(), table_start.data(),
                                 (int64_t)heads, (int64_t)kv_heads, (int64_t)dim, (int64_t)kv.shape(3), scale},
                                (int64_t)tokens, query_start.data(), (int64_t)sequences, (int64_t)tables.shape(0), (int64_t)kv.shape(1));
        }, nb::arg("out").noconvert(), nb::arg("q").noconvert(), nb::arg("kv").noconvert(), nb::arg("positions").noconvert(),
           nb::arg("query_start").noconvert(), nb::arg("block_tables").noconvert(), nb::arg("block_table_start").noconvert(), "scale"_a, GIL())
        .def("silu_and_mul", [](Operators& ops, Out<2> out, In<2> gate, In<2> up) {
            expect("silu_and_mul: up", up, {gate.shape(0), gate.shape(1)});
            expect("silu_and_mul: out", out, {gate.shape(0), gate.shape(1)});
            ops.silu_and_mul(out.data(), gate.data(), up.data(), (int64_t)gate.size());
        }, nb::arg("out").noconvert(), nb::arg("gate").noconvert(), nb::arg("up").noconvert(), GIL());
}

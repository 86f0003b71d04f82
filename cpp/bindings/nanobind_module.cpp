// The nanobind door.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "buffers.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace labkernels;

template <class R, class... T>
static auto method(R (*function)(Operators&, T...)) {
    return doors::method<nb::handle>(function);
}

void bind_decoder(nb::module_& m);                     // nanobind_decoder.cpp
void bind_sampling(nb::class_<Operators>& operators);  // nanobind_sampling.cpp

NB_MODULE(_nanobind, m) {
    nb::set_leak_warnings(false);  // a backend that a global still holds when Python ends is not a leak
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::exception& error) {
            if (!doors::set_error(error)) throw;
        }
    });
    m.doc() = "The operators of a decoder in C++ (see cpp/include/labkernels), through nanobind.";
    m.def("variants", &checked::variants, "Instruction sets this machine runs, best first.");
    m.def("nothing", [] {}, "An empty call: what the door itself costs.");

    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix (rows, columns) packed in panels of 16 rows; immutable.")
        .def_static("from_float32", doors::maker<nb::handle>(checked::from_float32), "weight"_a.none())
        .def_static("from_int8", doors::maker<nb::handle>(checked::from_int8), "weight"_a.none(), "scales"_a.none())
        .def_static("from_blocks", doors::maker<nb::handle>(checked::from_blocks), "blocks"_a.none(), "format"_a)
        .def_prop_ro("shape", [](const PackedMatrix& p) { return nb::make_tuple(p.view().rows, p.view().columns); })
        .def_prop_ro("nbytes", &PackedMatrix::nbytes);

    nb::class_<Operators> operators(m, "Operators", "One variant of the kernels and one team of threads. Outputs come first; nothing is copied.");
    operators.def(nb::init<const std::string&, int, bool>(), "isa"_a, "threads"_a, "reference"_a = false)
        .def_prop_ro("isa", &Operators::isa)
        .def_prop_ro("threads", &Operators::threads)
        .def_prop_ro("rms_norm_versions", &checked::rms_norm_versions)
        .def("embedding", method(checked::embedding), "out"_a.none(), "token_ids"_a.none(), "weight"_a)
        .def("rms_norm", method(checked::rms_norm), "out"_a.none(), "x"_a.none(), "weight"_a.none(), "eps"_a)
        .def("rms_norm_version", method(checked::rms_norm_version), "version"_a, "out"_a.none(), "x"_a.none(), "weight"_a.none(), "eps"_a)
        .def("add_rms_norm", method(checked::add_rms_norm), "out"_a.none(), "total"_a.none(), "x"_a.none(), "residual"_a.none(),
             "weight"_a.none(), "eps"_a)
        .def("linear", method(checked::linear), "out"_a.none(), "x"_a.none(), "weight"_a, "bias"_a.none() = nb::none())
        .def("rope", method(checked::rope), "out"_a.none(), "x"_a.none(), "positions"_a.none(), "cos"_a.none(), "sin"_a.none())
        .def("store_kv", method(checked::store_kv), "kv"_a.none(), "k"_a.none(), "v"_a.none(), "slot_mapping"_a.none())
        .def("paged_attention", method(checked::paged_attention), "out"_a.none(), "q"_a.none(), "kv"_a.none(), "positions"_a.none(),
             "query_start"_a.none(), "block_tables"_a.none(), "block_table_start"_a.none(), "scale"_a)
        .def("silu_and_mul", method(checked::silu_and_mul), "out"_a.none(), "gate"_a.none(), "up"_a.none())
        .def("softmax", method(checked::softmax), "out"_a.none(), "x"_a.none())
        .def("topk_softmax", method(checked::topk_softmax), "weights"_a.none(), "ids"_a.none(), "router_logits"_a.none(), "renormalize"_a)
        .def("read", method(checked::read), "x"_a.none(), "The sum of the numbers, read as fast as this machine reads.")
        .def("copy", method(checked::copy), "out"_a.none(), "x"_a.none())
        .def("multiply_adds", &Operators::multiply_adds, "count"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("int8_dots", &Operators::int8_dots, "count"_a, nb::call_guard<nb::gil_scoped_release>());
    bind_sampling(operators);
    bind_decoder(m);
}

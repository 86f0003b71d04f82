// The pybind11 door: the same classes as the nanobind one.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "buffers.hpp"

namespace py = pybind11;
using namespace py::literals;
using namespace labkernels;

template <class R, class... T>
static auto method(R (*function)(Operators&, T...)) {
    return doors::method<py::handle>(function);
}

PYBIND11_MODULE(_pybind11, m) {
    py::register_local_exception_translator([](std::exception_ptr thrown) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::exception& error) {
            if (!doors::set_error(error)) throw;
        }
    });
    m.doc() = "The operators of a decoder in C++ (see cpp/include/labkernels), through pybind11.";
    m.def("variants", &checked::variants, "Instruction sets this machine runs, best first.");
    m.def("nothing", [] {}, "An empty call: what the door itself costs.");

    py::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix (rows, columns) packed in panels of 16 rows; immutable.")
        .def_static("from_float32", doors::maker<py::handle>(checked::from_float32), "weight"_a)
        .def_static("from_int8", doors::maker<py::handle>(checked::from_int8), "weight"_a, "scales"_a)
        .def_static("from_blocks", doors::maker<py::handle>(checked::from_blocks), "blocks"_a, "format"_a)
        .def_property_readonly("shape", [](const PackedMatrix& p) { return py::make_tuple(p.view().rows, p.view().columns); })
        .def_property_readonly("nbytes", &PackedMatrix::nbytes);

    py::class_<Operators>(m, "Operators", "One variant of the kernels and one team of threads. Outputs come first; nothing is copied.")
        .def(py::init<const std::string&, int, bool>(), "isa"_a, "threads"_a, "reference"_a = false)
        .def_property_readonly("isa", &Operators::isa)
        .def_property_readonly("threads", &Operators::threads)
        .def_property_readonly("rms_norm_versions", &checked::rms_norm_versions)
        .def("embedding", method(checked::embedding), "out"_a, "token_ids"_a, "weight"_a)
        .def("rms_norm", method(checked::rms_norm), "out"_a, "x"_a, "weight"_a, "eps"_a)
        .def("rms_norm_version", method(checked::rms_norm_version), "version"_a, "out"_a, "x"_a, "weight"_a, "eps"_a)
        .def("add_rms_norm", method(checked::add_rms_norm), "out"_a, "total"_a, "x"_a, "residual"_a, "weight"_a, "eps"_a)
        .def("linear", method(checked::linear), "out"_a, "x"_a, "weight"_a, "bias"_a = py::none())
        .def("rope", method(checked::rope), "out"_a, "x"_a, "positions"_a, "cos"_a, "sin"_a)
        .def("store_kv", method(checked::store_kv), "kv"_a, "k"_a, "v"_a, "slot_mapping"_a)
        .def("paged_attention", method(checked::paged_attention), "out"_a, "q"_a, "kv"_a, "positions"_a, "query_start"_a, "block_tables"_a,
             "block_table_start"_a, "scale"_a)
        .def("silu_and_mul", method(checked::silu_and_mul), "out"_a, "gate"_a, "up"_a)
        .def("softmax", method(checked::softmax), "out"_a, "x"_a)
        .def("topk_softmax", method(checked::topk_softmax), "weights"_a, "ids"_a, "router_logits"_a, "renormalize"_a)
        .def("read", method(checked::read), "x"_a, "The sum of the numbers, read as fast as this machine reads.")
        .def("copy", method(checked::copy), "out"_a, "x"_a)
        .def("multiply_adds", &Operators::multiply_adds, "count"_a, py::call_guard<py::gil_scoped_release>())
        .def("int8_dots", &Operators::int8_dots, "count"_a, py::call_guard<py::gil_scoped_release>());
}

// draw and law through nanobind: the arrays are checked as all are, and the numbers in them too, as a kernel cannot refuse any.
#include <nanobind/nanobind.h>

#include <algorithm>

#include "buffers.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace labkernels;

namespace {

// `good` of each row's number, or an error that names the first that is not; a NaN is good for nothing.
template <class T, class Good>
void check_each(const Arguments& check, const char* name, const T* values, int64_t rows, const char* expected, const Good& good) {
    for (int64_t row = 0; row < rows; row++)
        if (!good(values[row]))
            throw std::invalid_argument(check.says(name) + " is " + std::to_string(values[row]) + " in row " +
                                        std::to_string(row) + "; expected " + expected);
}

// Edits lie row behind row; in a row an id has one value.
void check_edits(const Arguments& check, const SamplingArgs& a, int64_t rows, int64_t edits) {
    check_ids(check.says("edit id").c_str(), a.edit_ids, edits, a.vocab);
    if (a.edit_start[0] != 0 || a.edit_start[rows] != edits)
        throw std::invalid_argument(check.says("edit_start") + " must run from 0 to the " + std::to_string(edits) + " edits");
    for (int64_t row = 0; row < rows; row++) {
        if (a.edit_start[row] > a.edit_start[row + 1] || a.edit_start[row + 1] > edits)
            throw std::invalid_argument(check.says("edit_start") + " descends or leaves its array in row " + std::to_string(row));
        std::vector<int64_t> ids(a.edit_ids + a.edit_start[row], a.edit_ids + a.edit_start[row + 1]);
        if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
        const auto twice = std::adjacent_find(ids.begin(), ids.end());
        if (twice != ids.end())
            throw std::invalid_argument(check.says("edit id ") + std::to_string(*twice) + " stands twice in row " +
                                        std::to_string(row));
    }
}

SamplingArgs arguments(Arguments& check, const ArrayView& logits, const ArrayView& temperature, const ArrayView& top_k,
                       const ArrayView& top_p, const ArrayView& min_p, const ArrayView& edit_start, const ArrayView& edit_ids,
                       const ArrayView& edit_values) {
    SamplingArgs a{};
    a.logits = check.in<float>("logits", logits, {"rows", "vocab"});
    const int64_t rows = logits.shape[0];
    a.vocab = logits.shape[1];
    a.temperature = check.in<double>("temperature", temperature, {rows});
    a.top_k = check.in<int64_t>("top_k", top_k, {rows});
    a.top_p = check.in<double>("top_p", top_p, {rows});
    a.min_p = check.in<double>("min_p", min_p, {rows});
    a.edit_start = check.in<int64_t>("edit_start", edit_start, {rows + 1});
    a.edit_ids = check.in<int64_t>("edit_ids", edit_ids, {"edits"});
    a.edit_values = check.in<double>("edit_values", edit_values, {edit_ids.shape[0]});
    check_each(check, "temperature", a.temperature, rows, "a finite number, 0 or more",
               [](double t) { return 0 <= t && t < INFINITY; });
    check_each(check, "top_k", a.top_k, rows, "0 (all) or more", [](int64_t k) { return 0 <= k; });
    check_each(check, "top_p", a.top_p, rows, "a number above 0, up to 1", [](double p) { return 0 < p && p <= 1; });
    check_each(check, "min_p", a.min_p, rows, "a number from 0 to 1", [](double p) { return 0 <= p && p <= 1; });
    check_edits(check, a, rows, edit_ids.shape[0]);
    return a;
}

void draw(Operators& ops, const ArrayView& tokens, const ArrayView& logits, const ArrayView& temperature, const ArrayView& top_k,
          const ArrayView& top_p, const ArrayView& min_p, const ArrayView& u, const ArrayView& edit_start,
          const ArrayView& edit_ids, const ArrayView& edit_values) {
    Arguments check("draw");
    SamplingArgs a = arguments(check, logits, temperature, top_k, top_p, min_p, edit_start, edit_ids, edit_values);
    const int64_t rows = logits.shape[0];
    a.u = check.in<double>("u", u, {rows});
    check_each(check, "u", a.u, rows, "a number from 0, below 1", [](double x) { return 0 <= x && x < 1; });
    a.tokens = check.out<int64_t>("tokens", tokens, {rows});
    check.apart();
    ops.sample(a, rows);
}

void law(Operators& ops, const ArrayView& out, const ArrayView& logits, const ArrayView& temperature, const ArrayView& top_k,
         const ArrayView& top_p, const ArrayView& min_p, const ArrayView& edit_start, const ArrayView& edit_ids,
         const ArrayView& edit_values) {
    Arguments check("law");
    SamplingArgs a = arguments(check, logits, temperature, top_k, top_p, min_p, edit_start, edit_ids, edit_values);
    a.law = check.out<double>("out", out, {logits.shape[0], a.vocab});
    check.apart();
    ops.sample(a, logits.shape[0]);
}

}  // namespace

void bind_sampling(nb::class_<Operators>& operators) {
    operators
        .def("draw", doors::method<nb::handle>(draw), "tokens"_a.none(), "logits"_a.none(), "temperature"_a.none(),
             "top_k"_a.none(), "top_p"_a.none(), "min_p"_a.none(), "u"_a.none(), "edit_start"_a.none(), "edit_ids"_a.none(),
             "edit_values"_a.none())
        .def("law", doors::method<nb::handle>(law), "out"_a.none(), "logits"_a.none(), "temperature"_a.none(), "top_k"_a.none(),
             "top_p"_a.none(), "min_p"_a.none(), "edit_start"_a.none(), "edit_ids"_a.none(), "edit_values"_a.none());
}

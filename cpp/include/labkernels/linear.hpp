// linear: the product with a matrix of any format; one header each: matmul_f32.hpp, matmul_int8.hpp, matmul_blocks.hpp.
#pragma once
#include "labkernels/matmul_blocks.hpp"
#include "labkernels/matmul_f32.hpp"
#include "labkernels/matmul_int8.hpp"

namespace labkernels::LAB_ISA {

static void matmul(float* out, const float* x, const Activations& q, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                   int64_t panel_begin, int64_t panel_end) {
    switch (w.format) {
        case Format::f32: return matmul_f32(out, x, w, bias, row_begin, row_end, panel_begin, panel_end);
        case Format::int8: return matmul_int8(out, q, w, bias, row_begin, row_end, panel_begin, panel_end);
        case Format::q8_0: return matmul_blocks<Format::q8_0>(out, q, w, bias, row_begin, row_end, panel_begin, panel_end);
        case Format::q4_0: return matmul_blocks<Format::q4_0>(out, q, w, bias, row_begin, row_end, panel_begin, panel_end);
        case Format::q4_1: return matmul_blocks<Format::q4_1>(out, q, w, bias, row_begin, row_end, panel_begin, panel_end);
    }
}

static void matmul_reference(float* out, const float* x, const Activations& q, const Matrix& w, const float* bias, int64_t row_begin,
                             int64_t row_end, int64_t panel_begin, int64_t panel_end) {
    if (w.format == Format::f32) matmul_f32_reference(out, x, w, bias, row_begin, row_end, panel_begin, panel_end);
    else if (w.format == Format::int8) matmul_int8_reference(out, q, w, bias, row_begin, row_end, panel_begin, panel_end);
    else matmul_blocks_reference(out, q, w, bias, row_begin, row_end, panel_begin, panel_end);
}

}  // namespace labkernels::LAB_ISA

// linear: out[r][n] = bias[n] + sum over k of x[r][k] * w[n][k]; no bias is a null pointer.
//
// Exactness: out[r][n] is one chain of multiply-adds over k = 0, 1, ..., K-1, in one lane, and begins at the bias. Lanes are outputs, never k; threads
// split rows and outputs, never k. So a row has the same bits alone and among 511 others.
//
// Speed: a register block of ROWS x PANELS vectors reuses each weight vector ROWS times and each x PANELS times; one chain is
// latency-bound, a block of them is not. Weight bytes per call: the whole matrix once per 512 rows.
//
// Quantized weights are expanded a group of panels at a time into `scratch` (which stays in L2), by the arithmetic of the file
// format: scale * q (+ minimum), a product and then a sum. So a packed matrix gives the bits of its float32 expansion.
#pragma once
#include "labkernels/matrix.hpp"
#include "labkernels/simd.hpp"

namespace labkernels::LAB_ISA {

#if defined(LAB_ISA_AVX512)
constexpr int ROWS = 6, PANELS = 4;  // 24 accumulators + 4 weights + 1 x of 32 registers
#elif defined(LAB_ISA_AVX2)
constexpr int ROWS = 2, PANELS = 2;  // 8 accumulators + 4 + 1 of 16
#else
constexpr int ROWS = 2, PANELS = 1;  // 8 accumulators + 4 + 1 of 16
#endif

static void expand_panel(float* out, const Matrix& w, const uint8_t* data) {
    for (int64_t block = 0; block < w.columns / BLOCK; block++, data += w.block_bytes(), out += BLOCK * PANEL) {
        const vec scale = load((const float*)data);
        if (w.format == Format::q8_0) {
            for (int k = 0; k < BLOCK; k++) store(out + k * PANEL, scale * from_i8((const int8_t*)data + 64 + k * PANEL));
            continue;
        }
        const bool has_minimum = w.format == Format::q4_1;
        const vec minimum = has_minimum ? load((const float*)(data + 64)) : set1(0.0f), eight = set1(8.0f);
        for (int k = 0; k < BLOCK; k += 2) {
            vec low, high;
            from_nibbles(data + (has_minimum ? 128 : 64) + k / 2 * PANEL, low, high);
            store(out + k * PANEL, has_minimum ? scale * low + minimum : scale * (low - eight));
            store(out + (k + 1) * PANEL, has_minimum ? scale * high + minimum : scale * (high - eight));
        }
    }
}

template <int R, int P>
static void register_block(float* out, int64_t out_stride, const float* x, const float* w, const float* bias, int64_t columns, int64_t width) {
    vec acc[R][P];
    for (int p = 0; p < P; p++) {
        const vec first = bias ? load_n(bias + p * PANEL, min_of(width - p * PANEL, PANEL)) : set1(0.0f);
        for (int r = 0; r < R; r++) acc[r][p] = first;
    }
    for (int64_t k = 0; k < columns; k++) {
        vec wk[P];
        for (int p = 0; p < P; p++) wk[p] = load(w + (p * columns + k) * PANEL);
        for (int r = 0; r < R; r++) {
            const vec xk = set1(x[r * columns + k]);
            for (int p = 0; p < P; p++) acc[r][p] = fma(xk, wk[p], acc[r][p]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) {
            float* to = out + r * out_stride + p * PANEL;
            int64_t n = width - p * PANEL;
            if (n >= PANEL) store(to, acc[r][p]);
            else store_n(to, acc[r][p], n);
        }
}

template <int P, int R = ROWS>
static void all_rows(float* out, int64_t out_stride, const float* x, const float* w, const float* bias, int64_t columns, int64_t width,
                     int64_t rows) {
    int64_t r = 0;
    for (; r + R <= rows; r += R) register_block<R, P>(out + r * out_stride, out_stride, x + r * columns, w, bias, columns, width);
    if constexpr (R > 1)
        if (r < rows) all_rows<P, R - 1>(out + r * out_stride, out_stride, x + r * columns, w, bias, columns, width, rows - r);
}

static void linear(float* out, const float* x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                   int64_t panel_end, float* scratch) {
    const int64_t columns = w.columns, rows = row_end - row_begin;
    x += row_begin * columns;
    out += row_begin * w.rows;
    for (int64_t panel = panel_begin; panel < panel_end;) {
        const int64_t group = panel_end - panel >= PANELS ? PANELS : 1;
        const float* weights = (const float*)w.panel(panel);
        if (w.format != Format::f32) {
            for (int64_t p = 0; p < group; p++) expand_panel(scratch + p * columns * PANEL, w, w.panel(panel + p));
            weights = scratch;
        }
        const int64_t width = min_of(group * PANEL, w.rows - panel * PANEL);
        const float* added = bias ? bias + panel * PANEL : nullptr;
        if (group == PANELS) all_rows<PANELS>(out + panel * PANEL, w.rows, x, weights, added, columns, width, rows);
        else all_rows<1>(out + panel * PANEL, w.rows, x, weights, added, columns, width, rows);
        panel += group;
    }
}

}  // namespace labkernels::LAB_ISA

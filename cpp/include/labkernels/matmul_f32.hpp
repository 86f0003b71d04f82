// The product with float32 weights: out[r][n] = bias[n] + sum over k of x[r][k] * w[n][k], one chain over k = 0, 1, ..., K-1.
//
// reference   one output at a time: a multiply-add waits for the one before it (4 cycles), one lane of 16 is used.
// matmul_f32  lanes are outputs, never k, so a vector holds 16 chains; R rows by P panels of vectors in registers run side by
//             side and hide the latency. Each weight vector is used R times, each x P times. Many rows take the columns in strips
//             of 128, whose weights (32 KB) stay in L1 for all of them; between strips a chain waits in its output.
// Both give the same bits: lanes and rows only stand beside each other. So a row has the same bits alone and among 511 others.
// Bytes: the whole matrix once per chunk of rows.
#pragma once
#include "labkernels/matrix.hpp"
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

#if defined(LAB_ISA_AVX512)
constexpr int ROWS = 6, PANELS = 4;  // 24 accumulators + 4 weights + 1 x of 32 registers
#elif defined(LAB_ISA_AVX2)
constexpr int ROWS = 2, PANELS = 2;  // 8 accumulators + 4 + 1 of 16
#else
constexpr int ROWS = 2, PANELS = 1;  // 8 accumulators + 4 + 1 of 16
#endif

static void matmul_f32_reference(float* out, const float* x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                                 int64_t panel_begin, int64_t panel_end) {
    for (int64_t r = row_begin; r < row_end; r++)
        for (int64_t n = panel_begin * PANEL; n < min_of(panel_end * PANEL, w.rows); n++) {
            const float* weights = (const float*)w.panel(n / PANEL) + n % PANEL;
            float acc = bias ? bias[n] : 0.0f;
            for (int64_t k = 0; k < w.columns; k++) acc = fma1(x[r * w.columns + k], weights[k * PANEL], acc);
            out[r * w.rows + n] = acc;
        }
}

struct Strip {  // columns [begin, end): the chains start at the bias before the first, and go on from the output after it
    int64_t begin, end;
};

template <int R, int P>
static inline void register_tile(float* out, int64_t out_stride, const float* x, const float* w, const float* bias, int64_t columns,
                                 int64_t width, Strip strip) {
    vec acc[R][P];
    for (int p = 0; p < P; p++) {
        const int64_t n = min_of(width - p * PANEL, PANEL);
        const vec first = bias ? load_n(bias + p * PANEL, n) : set1(0.0f);
        for (int r = 0; r < R; r++) acc[r][p] = strip.begin ? load_n(out + r * out_stride + p * PANEL, n) : first;
    }
    for (int64_t k = strip.begin; k < strip.end; k++) {
        vec wk[P];
        for (int p = 0; p < P; p++) wk[p] = load(w + (p * columns + k) * PANEL);
        for (int r = 0; r < R; r++) {
            const vec xk = set1(x[r * columns + k]);
            for (int p = 0; p < P; p++) acc[r][p] = fma(xk, wk[p], acc[r][p]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) store_n(out + r * out_stride + p * PANEL, acc[r][p], min_of(width - p * PANEL, PANEL));
}

template <int P>
static void all_rows(float* out, int64_t out_stride, const float* x, const float* w, const float* bias, int64_t columns, int64_t width,
                     int64_t rows, Strip strip) {
    in_row_blocks<ROWS>(0, rows, [&](int64_t r, auto count) {
        register_tile<decltype(count)::value, P>(out + r * out_stride, out_stride, x + r * columns, w, bias, columns, width, strip);
    });
}

static void matmul_f32(float* out, const float* x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                       int64_t panel_begin, int64_t panel_end) {
    const int64_t columns = w.columns, rows = row_end - row_begin, step = rows > 2 * ROWS ? 128 : columns;
    if (columns == 0) return matmul_f32_reference(out, x, w, bias, row_begin, row_end, panel_begin, panel_end);  // the bias alone
    x += row_begin * columns;
    out += row_begin * w.rows;
    for (int64_t panel = panel_begin; panel < panel_end;) {
        const int64_t group = panel_end - panel >= PANELS ? PANELS : 1, width = min_of(group * PANEL, w.rows - panel * PANEL);
        const float *weights = (const float*)w.panel(panel), *added = bias ? bias + panel * PANEL : nullptr;
        for (int64_t k = 0; k < columns; k += step) {
            const Strip strip{k, min_of(k + step, columns)};
            if (group == PANELS) all_rows<PANELS>(out + panel * PANEL, w.rows, x, weights, added, columns, width, rows, strip);
            else all_rows<1>(out + panel * PANEL, w.rows, x, weights, added, columns, width, rows, strip);
        }
        panel += group;
    }
}

}  // namespace labkernels::LAB_ISA

// The product with int8 weights, one scale per output channel: out[r][n] = float(i) * (d_w[n] * d_x[r]) + bias[n], where i is
// the integer sum over the whole row. Exact in i (K up to 131,072 fits an int32), so order and lanes are free.
//
// reference    one output at a time.
// matmul_int8  16 outputs a vector, 4 products an instruction, R rows by P panels. No scale inside the loop: nothing but dots,
//              which is what a scale per channel buys; what it costs is that one outlier coarsens its whole row.
// Bytes: 1 a weight.
#pragma once
#include "labkernels/ints.hpp"
#include "labkernels/matrix.hpp"

namespace labkernels::LAB_ISA {

static void matmul_int8_reference(float* out, const Activations& x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                                  int64_t panel_begin, int64_t panel_end) {
    for (int64_t r = row_begin; r < row_end; r++)
        for (int64_t n = panel_begin * PANEL; n < min_of(panel_end * PANEL, w.rows); n++) {
            const uint8_t* panel = w.panel(n / PANEL);
            const int64_t lane = n % PANEL;
            int32_t i = 0;
            for (int64_t k = 0; k < w.columns; k++) i += (int8_t)panel[k / 4 * 64 + lane * 4 + k % 4] * x.q[r * x.stride + k];
            const float scale = ((const float*)(panel + w.quant_bytes()))[lane] * x.d[r];
            out[r * w.rows + n] = fma1((float)i, scale, bias ? bias[n] : 0.0f);
        }
}

#if defined(LAB_ISA_AVX512)
constexpr int INT8_ROWS = 6, INT8_PANELS = 4;
#elif defined(LAB_ISA_AVX2)
constexpr int INT8_ROWS = 2, INT8_PANELS = 2;
#else
constexpr int INT8_ROWS = 2, INT8_PANELS = 1;
#endif

template <int R, int P>
static inline void int8_register_tile(float* out, int64_t out_stride, const Activations& x, int64_t row, const Matrix& w, int64_t panel,
                                      const float* bias, int64_t width) {
    const int64_t fours = (w.columns + 3) / 4, next_panel = w.panel_bytes();
    const uint8_t* weights = w.panel(panel);
    const int8_t* q = x.q + row * x.stride;
    ints dot[R][P];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) dot[r][p] = splat(-LIFT * x.sums[row + r]);
    for (int64_t k = 0; k < fours; k++) {
        ints wk[P];
        for (int p = 0; p < P; p++) wk[p] = load_signed(weights + p * next_panel + k * 64);
        for (int r = 0; r < R; r++) {
            const ints xk = splat(load_i32(q + r * x.stride + 4 * k));
            for (int p = 0; p < P; p++) dot[r][p] = dot4_signed(dot[r][p], wk[p], xk);
        }
    }
    for (int p = 0; p < P; p++) {
        const int64_t n = min_of(width - p * PANEL, PANEL);
        const vec scale = load((const float*)(weights + p * next_panel + w.quant_bytes()));
        const vec start = bias ? load_n(bias + p * PANEL, n) : set1(0.0f);
        for (int r = 0; r < R; r++)
            store_n(out + r * out_stride + p * PANEL, fma(to_float(dot[r][p]), scale * set1(x.d[row + r]), start), n);
    }
}

template <int P>
static void int8_rows(float* out, int64_t out_stride, const Activations& x, int64_t row, int64_t row_end, const Matrix& w, int64_t panel,
                      const float* bias, int64_t width) {
    in_row_blocks<INT8_ROWS>(row, row_end, [&](int64_t r, auto count) {
        int8_register_tile<decltype(count)::value, P>(out + r * out_stride, out_stride, x, r, w, panel, bias, width);
    });
}

static void matmul_int8(float* out, const Activations& x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                        int64_t panel_begin, int64_t panel_end) {
    for (int64_t panel = panel_begin; panel < panel_end;) {
        const int64_t group = panel_end - panel >= INT8_PANELS ? INT8_PANELS : 1, width = min_of(group * PANEL, w.rows - panel * PANEL);
        float* to = out + panel * PANEL;
        const float* added = bias ? bias + panel * PANEL : nullptr;
        if (group == INT8_PANELS) int8_rows<INT8_PANELS>(to, w.rows, x, row_begin, row_end, w, panel, added, width);
        else int8_rows<1>(to, w.rows, x, row_begin, row_end, w, panel, added, width);
        panel += group;
    }
}

}  // namespace labkernels::LAB_ISA

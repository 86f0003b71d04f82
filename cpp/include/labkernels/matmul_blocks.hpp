// The product with Q8_0, Q4_0 and Q4_1 weights: out[r][n] = bias[n] + sum over blocks b of
//
//   float(i) * (d_w * d_x) + m_w * s        i = the integer sum of 32 products, exact
//
// one chain over b in one lane; Q4_0's nibble stands for nibble - 8, and only Q4_1 has a minimum m_w.
//
// reference      one output at a time, straight from the formula. 2 operations a weight, one weight an instruction.
// matmul_blocks  16 outputs a vector, 4 products an instruction, R rows by P panels in registers: a weight vector is unpacked
//                once for R rows, an activation broadcast once for P panels. Per block of 32 x 16 weights and row: 8 integer
//                dots, then 3 instructions for scale (4 with a minimum): two thirds of the peak of the dots at best.
// Both give the same bits: integers have no rounding, and the chain is the same.
// Bytes: a matrix once per chunk of rows, 5 bits a weight for Q4_1, 8.5 for Q8_0.
#pragma once
#include "labkernels/ints.hpp"
#include "labkernels/matrix.hpp"

namespace labkernels::LAB_ISA {

static inline int32_t weight_at(const Matrix& w, const uint8_t* panel, int64_t lane, int64_t k) {
    if (!w.nibbles()) return (int8_t)panel[k / 4 * 64 + lane * 4 + k % 4];
    const uint8_t byte = panel[k / 8 * 64 + lane * 4 + k % 4];
    return (k % 8 < 4 ? byte & 15 : byte >> 4) - (w.format == Format::q4_0 ? 8 : 0);
}

static inline float lane_of(vec a, int64_t lane) {
    float t[LANES];
    store(t, a);
    return t[lane];
}

static void matmul_blocks_reference(float* out, const Activations& x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                                    int64_t panel_begin, int64_t panel_end) {
    for (int64_t r = row_begin; r < row_end; r++)
        for (int64_t n = panel_begin * PANEL; n < min_of(panel_end * PANEL, w.rows); n++) {
            const uint8_t *panel = w.panel(n / PANEL), *scales = panel + w.quant_bytes();
            const int64_t lane = n % PANEL;
            vec acc = set1(bias ? bias[n] : 0.0f);
            for (int64_t b = 0; b < x.groups; b++, scales += w.scale_bytes()) {
                int32_t i = 0;
                for (int64_t k = b * BLOCK; k < (b + 1) * BLOCK; k++) i += weight_at(w, panel, lane, k) * x.q[r * x.stride + k];
                const int64_t at = r * x.groups + b;
                acc = fma(set1((float)i), set1(lane_of(load_half(scales), lane)) * set1(x.d[at]), acc);
                if (w.format == Format::q4_1) acc = fma(set1(lane_of(load_half(scales + 32), lane)), set1(x.s[at]), acc);
            }
            out[r * w.rows + n] = lane_of(acc, lane);
        }
}

#if defined(LAB_ISA_AVX512)
constexpr int BLOCK_ROWS = 6, BLOCK_PANELS = 2;  // 12 integer + 12 float accumulators, 2 weights, 1 x, mask: 28 of 32 registers
#elif defined(LAB_ISA_AVX2)
constexpr int BLOCK_ROWS = 2, BLOCK_PANELS = 1;
#else
constexpr int BLOCK_ROWS = 2, BLOCK_PANELS = 1;
#endif

// The next panels are asked for while these are at work, and each set of rows asks for its share of them: so memory brings them
// at an even pace, and not all during the first rows. Every `of`-th block, from `turn` on.
struct Share {
    int64_t turn, of;
};

template <Format F, int R, int P>
static inline void block_register_tile(float* out, int64_t out_stride, const Activations& x, int64_t row, const Matrix& w, int64_t panel,
                                       const float* bias, int64_t width, Share share) {
    constexpr bool NIBBLES = F != Format::q8_0;
    constexpr int GROUPS = NIBBLES ? 4 : 8;
    vec acc[R][P];
    for (int p = 0; p < P; p++) {
        const vec start = bias ? load_n(bias + p * PANEL, min_of(width - p * PANEL, PANEL)) : set1(0.0f);
        for (int r = 0; r < R; r++) acc[r][p] = start;
    }
    const uint8_t* quants = w.panel(panel);
    const int64_t next_panel = w.panel_bytes(), scales = w.quant_bytes();
    const int8_t* q = x.q + row * x.stride;
    const float *d = x.d + row * x.groups, *s = x.s + row * x.groups;
    const int32_t* sums = x.sums + row * x.groups;
    for (int64_t b = 0; b < x.groups; b++) {
        const bool fetch = b % share.of == share.turn;
        ints dot[R][P];
        for (int r = 0; r < R; r++)
            for (int p = 0; p < P; p++)
                dot[r][p] = F == Format::q4_1 ? splat(0) : splat((F == Format::q4_0 ? -8 : -LIFT) * sums[r * x.groups + b]);
        for (int g = 0; g < GROUPS; g++) {
            ints weights[P];
            const uint8_t* at = quants + (b * GROUPS + g) * 64;
            if (fetch)
                for (int p = 0; p < P; p++) prefetch_l2(at + (p + P) * next_panel);
            for (int p = 0; p < P; p++) weights[p] = NIBBLES ? load_bytes(at + p * next_panel) : load_signed(at + p * next_panel);
            for (int half = 0; half < (NIBBLES ? 2 : 1); half++)
                for (int r = 0; r < R; r++) {
                    const ints xs = splat(load_i32(q + r * x.stride + b * BLOCK + (NIBBLES ? 8 * g + 4 * half : 4 * g)));
                    for (int p = 0; p < P; p++)
                        dot[r][p] = NIBBLES ? dot4(dot[r][p], half ? high_nibbles(weights[p]) : low_nibbles(weights[p]), xs)
                                            : dot4_signed(dot[r][p], weights[p], xs);
                }
        }
        for (int p = 0; p < P; p++) {
            const uint8_t* at = quants + p * next_panel + scales + b * (F == Format::q4_1 ? 64 : 32);
            if (fetch) prefetch_l2(at + P * next_panel);
            const vec scale = load_half(at), minimum = F == Format::q4_1 ? load_half(at + 32) : set1(0.0f);
            for (int r = 0; r < R; r++) {
                acc[r][p] = fma(to_float(dot[r][p]), scale * set1(d[r * x.groups + b]), acc[r][p]);
                if (F == Format::q4_1) acc[r][p] = fma(minimum, set1(s[r * x.groups + b]), acc[r][p]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) store_n(out + r * out_stride + p * PANEL, acc[r][p], min_of(width - p * PANEL, PANEL));
}

template <Format F, int P>
static void block_rows(float* out, int64_t out_stride, const Activations& x, int64_t row, int64_t row_end, const Matrix& w, int64_t panel,
                       const float* bias, int64_t width) {
    Share share{0, (row_end - row + BLOCK_ROWS - 1) / BLOCK_ROWS};
    in_row_blocks<BLOCK_ROWS>(row, row_end, [&](int64_t r, auto count) {
        block_register_tile<F, decltype(count)::value, P>(out + r * out_stride, out_stride, x, r, w, panel, bias, width, share);
        share.turn++;
    });
}

template <Format F>
static void matmul_blocks(float* out, const Activations& x, const Matrix& w, const float* bias, int64_t row_begin, int64_t row_end,
                          int64_t panel_begin, int64_t panel_end) {
    for (int64_t panel = panel_begin; panel < panel_end;) {
        const int64_t group = panel_end - panel >= BLOCK_PANELS ? BLOCK_PANELS : 1, width = min_of(group * PANEL, w.rows - panel * PANEL);
        float* to = out + panel * PANEL;
        const float* added = bias ? bias + panel * PANEL : nullptr;
        if (group == BLOCK_PANELS) block_rows<F, BLOCK_PANELS>(to, w.rows, x, row_begin, row_end, w, panel, added, width);
        else block_rows<F, 1>(to, w.rows, x, row_begin, row_end, w, panel, added, width);
        panel += group;
    }
}

}  // namespace labkernels::LAB_ISA

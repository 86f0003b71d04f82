// How a weight matrix (rows = outputs N, columns = inputs K) lies in memory: panels of 16 outputs.
//
// A product walks k and needs w[n][k] of 16 neighbouring outputs n at once: one vector load in this layout, 16 scattered
// ones in the row-major layout of the file. Packing happens once, at load. N is padded to whole panels with zeros.
//
//   f32    panel = K x 16 floats
//   int8   panel = ceil(K / 4) x 16 lanes of 4 bytes, then 16 scales f32
//   q8_0   panel = K/32 blocks of 8 x 16 lanes of 4 bytes, then K/32 x 16 scales f16         544 bytes per 512 weights
//   q4_0   panel = K/32 blocks of 4 x 16 lanes of 4 bytes, then K/32 x 16 scales f16         288
//   q4_1   the same, then K/32 x { 16 scales f16, 16 minima f16 }                            320, as in the file
// A lane's 4 bytes are 4 neighbouring columns. Of nibbles, byte j of group g holds column 8g + j in its low half and
// column 8g + 4 + j in its high half.
#pragma once
#include <stdint.h>

namespace labkernels {

constexpr int64_t PANEL = 16, BLOCK = 32;
constexpr int64_t MAX_INT8_COLUMNS = 1 << 17;  // 2^17 products of 128 x 127 fit an int32

enum class Format { f32, int8, q8_0, q4_0, q4_1 };

struct Matrix {
    Format format;
    int64_t rows, columns;
    const uint8_t* data;

    int64_t panels() const { return (rows + PANEL - 1) / PANEL; }
    int64_t blocks() const { return columns / BLOCK; }
    bool nibbles() const { return format == Format::q4_0 || format == Format::q4_1; }
    int64_t scale_bytes() const { return format == Format::q4_1 ? 64 : 32; }  // of a block
    int64_t quant_bytes() const {                                             // of a panel: where its scales begin
        return format == Format::f32 ? columns * PANEL * 4 : format == Format::int8 ? (columns + 3) / 4 * 64 : blocks() * (nibbles() ? 256 : 512);
    }
    int64_t panel_bytes() const {
        const int64_t scales = format == Format::f32 ? 0 : format == Format::int8 ? 64 : blocks() * scale_bytes();
        return (quant_bytes() + scales + 63) / 64 * 64;
    }
    const uint8_t* panel(int64_t i) const { return data + i * panel_bytes(); }
    // groups of columns in which the left operand is quantized; 0: it stays float32
    int64_t groups() const { return format == Format::f32 ? 0 : format == Format::int8 ? 1 : blocks(); }
};

// Rows of activations in int8: see quantize.hpp.
struct Activations {
    int8_t* q;      // (rows, stride), zeros behind the columns
    float *d, *s;   // (rows, groups): scale, and scale * sum of q
    int32_t* sums;  // (rows, groups): sum of q
    int64_t groups, stride;
};

}  // namespace labkernels

// How a weight matrix (rows = outputs N, columns = inputs K) lies in memory: panels of 16 outputs.
//
// A product walks k and needs w[n][k] of 16 neighbouring outputs n at once: one vector load in this layout, 16 scattered
// ones in the row-major layout of the file. Packing happens once, at load. N is padded to whole panels with zeros.
//
//   f32    panel = K x 16 floats
//   q8_0   panel = K/32 blocks of { 16 scales f32, 32 x 16 int8 }                          576 bytes per 512 weights
//   q4_0   panel = K/32 blocks of { 16 scales f32, 16 x 16 bytes of two nibbles }          320
//   q4_1   panel = K/32 blocks of { 16 scales f32, 16 minima f32, 16 x 16 bytes }          384
// Byte i of lane n holds column 2i in its low half and column 2i + 1 in its high half.
#pragma once
#include <stdint.h>

namespace labkernels {

constexpr int64_t PANEL = 16, BLOCK = 32;

enum class Format { f32, q8_0, q4_0, q4_1 };

struct Matrix {
    Format format;
    int64_t rows, columns;
    const uint8_t* data;

    int64_t panels() const { return (rows + PANEL - 1) / PANEL; }
    int64_t block_bytes() const { return format == Format::q8_0 ? 576 : format == Format::q4_0 ? 320 : 384; }
    int64_t panel_bytes() const { return format == Format::f32 ? columns * PANEL * 4 : columns / BLOCK * block_bytes(); }
    const uint8_t* panel(int64_t i) const { return data + i * panel_bytes(); }
};

}  // namespace labkernels

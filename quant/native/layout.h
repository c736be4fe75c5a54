// Memory layouts that pack.cpp and quantize.inl write and the matmul kernels read.
//
// A panel holds 16 rows of W. Its units (256 elements of K for K-quants and IQ4_XS, 64 for the other block types, 1 for
// floats) follow one another; within a unit, "dword i" stands for 16 consecutive uint32, one per row. Quants keep the
// bits of the file's format: dword i of a row is bytes 4i .. 4i+3 of the row's quant bytes, four neighbours in K.
// Everything lies in the order in which a kernel first touches it: the hardware prefetchers only follow that.
//
//   Q4_0, IQ4_NL  f16 d[2][16], 8 dwords (4 per block of 32)                                           576 bytes
//   Q4_1          f16 d[2][16], f16 m[2][16], 8 dwords                                                 640
//   Q5_0          f16 d[2][16], 2 dwords of fifth bits (bit 8b+g is that of element 4g+b), 8 dwords    704
//   Q5_1          f16 d[2][16], f16 m[2][16], 2 dwords of fifth bits, 8 dwords                         768
//   Q8_0          f16 d[2][16], 16 dwords                                                             1088
//   NF4           f32 absmax[16], 8 dwords: elements 4i.. in the low, 32+4i.. in the high nibbles      576
//   Q2_K          f16 d[16], f16 dmin[16], 4 dwords of scales, 16 dwords                              1344
//   Q3_K          3 dwords of scales (see pack_six_bits), 8 x (high bits, quants), 8 dwords            1728  + d
//   Q4_K          f16 d[16], f16 dmin[16], 3 dwords of scales (see pack_six_bits), 32 dwords          2304
//   Q5_K          the same, then 8 x (fifth bits, quants), 24 dwords                                  2816
//   Q6_K          4 dwords of scales, 2 x [8 x (low nibbles, upper bits), 8 dwords of low nibbles]    3328  + d
//   IQ4_XS        f16 d[16], u16 scales_h[16], 1 dword of scales_l, 32 dwords                         2176
//
// "+ d": a line f16 d[2][16] precedes every second unit and holds the scales of two units. A row whose K ends in half a
// unit of 64 is padded with zero scales. Lanes past row n are zeros.
#pragma once

#include "kernels.h"

namespace specdec {

constexpr int kBlock = 32;        // activations that share a scale
constexpr int kSuperBlock = 256;  // activations of one ActBlock

// 256 consecutive activations of one row. A workspace is ActBlock[ceil(k / 256)][m]; elements past k are zeros.
// Activation i is about scale[i / 32] * q[i]. Block sums come in the forms that the kernels need.
struct alignas(64) ActBlock {
    int8_t q[kSuperBlock];
    float scale[8];        // per 32: max|x| / 127
    float sum[8];          // per 32: scale * sum(q)
    int32_t minus8[8];     // per 32: -8 * sum(q), likewise below
    int32_t minus16[8];
    int32_t minus128[8];
    int32_t minus32[16];   // per 16
    int16_t sum32_q[8];    // per 32: scale * sum(q) is about sum32_scale * sum32_q (16 bits)
    int16_t sum16_q[16];   // per 16, each four in the order 0 2 1 3
    float sum32_scale, sum16_scale;
};

struct PackedLayout {
    int64_t unit;        // elements of K
    int64_t unit_bytes;  // for 16 rows
    int64_t line_bytes;  // before every second unit
};
constexpr PackedLayout kLayouts[] = {
    {1, 64, 0},     {1, 32, 0},      {1, 32, 0},                      // F32, F16, BF16
    {64, 576, 0},   {64, 640, 0},    {64, 704, 0},   {64, 768, 0},    // Q4_0, Q4_1, Q5_0, Q5_1
    {64, 1088, 0},                                                    // Q8_0
    {256, 1344, 0}, {256, 1728, 64}, {256, 2304, 0}, {256, 2816, 0},  // Q2_K, Q3_K, Q4_K, Q5_K
    {256, 3328, 64},                                                  // Q6_K
    {64, 576, 0},   {256, 2176, 0},  {64, 576, 0},                    // IQ4_NL, IQ4_XS, NF4
};

// These are compiled into objects of several ISAs: static, so that none is shared.
static constexpr PackedLayout packed_layout(WeightType type) { return kLayouts[static_cast<size_t>(type)]; }
static constexpr int64_t num_units(PackedLayout layout, int64_t k) { return (k + layout.unit - 1) / layout.unit; }
// Of unit u within its panel, and of its half line.
static constexpr int64_t unit_offset(PackedLayout layout, int64_t u) { return u * layout.unit_bytes + (u / 2 + 1) * layout.line_bytes; }
static constexpr int64_t line_offset(PackedLayout layout, int64_t u) {
    return u / 2 * (2 * layout.unit_bytes + layout.line_bytes) + u % 2 * (layout.line_bytes / 2);
}
// A multiple of kAlignment; panels follow one another.
static constexpr int64_t panel_bytes(WeightType type, int64_t k) {
    const PackedLayout layout = packed_layout(type);
    const int64_t units = num_units(layout, k);
    return (units * layout.unit_bytes + (units + 1) / 2 * layout.line_bytes + 63) / 64 * 64;
}

// Value tables of the 4-bit non-linear types. NF4 (QLoRA, arXiv 2305.14314) is rounded to 1 / kNf4Scale, the
// step with the least mean error (0.0017 of the block's largest value, a twentieth of the type's own error).
alignas(16) constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kNf4Scale = 112.03f;
alignas(16) constexpr int8_t kNf4Values[16] = {-112, -78, -59, -44, -32, -21, -10, 0, 9, 18, 28, 38, 49, 63, 81, 112};

}  // namespace specdec

// Repacking of weights into panels of 16 rows; layout.h describes the layouts.
#include <algorithm>
#include <array>
#include <cstring>

#include "layout.h"

namespace specdec {
namespace {

constexpr WeightTypeInfo kTypes[] = {
    {WeightType::F32, "F32", 1, 4},           {WeightType::F16, "F16", 1, 2},
    {WeightType::BF16, "BF16", 1, 2},         {WeightType::Q4_0, "Q4_0", 32, 18},
    {WeightType::Q4_1, "Q4_1", 32, 20},       {WeightType::Q5_0, "Q5_0", 32, 22},
    {WeightType::Q5_1, "Q5_1", 32, 24},       {WeightType::Q8_0, "Q8_0", 32, 34},
    {WeightType::Q2_K, "Q2_K", 256, 84},      {WeightType::Q3_K, "Q3_K", 256, 110},
    {WeightType::Q4_K, "Q4_K", 256, 144},     {WeightType::Q5_K, "Q5_K", 256, 176},
    {WeightType::Q6_K, "Q6_K", 256, 210},     {WeightType::IQ4_NL, "IQ4_NL", 32, 18},
    {WeightType::IQ4_XS, "IQ4_XS", 256, 136}, {WeightType::NF4, "NF4", 64, 36},
};

uint32_t load32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

// Where one row writes within a unit of 16 rows.
struct Lane {
    uint8_t* unit;
    int64_t row;
    void dword(int64_t offset, int64_t i, uint32_t v) const { std::memcpy(unit + offset + 64 * i + 4 * row, &v, 4); }
    void dwords(int64_t offset, const uint8_t* src, int64_t count) const {
        for (int64_t i = 0; i < count; i++) dword(offset, i, load32(src + 4 * i));
    }
    // Eight dwords of `first` and of `second` in turn.
    void interleave(int64_t offset, const uint8_t* first, const uint8_t* second) const {
        for (int64_t i = 0; i < 8; i++) {
            dword(offset, 2 * i, load32(first + 4 * i));
            dword(offset, 2 * i + 1, load32(second + 4 * i));
        }
    }
    void half(int64_t offset, const uint8_t* src) const { std::memcpy(unit + offset + 2 * row, src, 2); }
};

// Bit 4g + b of a block's 32 fifth bits goes to bit 8b + g.
uint32_t spread_fifth_bits(uint32_t bits) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> t{};
        for (uint32_t byte = 0; byte < 256; byte++)
            for (uint32_t i = 0; i < 8; i++) t[byte] |= (byte >> i & 1u) << (8 * (i % 4) + i / 4);
        return t;
    }();
    return table[bits & 255] | table[bits >> 8 & 255] << 2 | table[bits >> 16 & 255] << 4 | table[bits >> 24] << 6;
}

// Sixteen 6-bit numbers, four to a word as bytes. Three dwords come of them. Dword 0 (1): number 2p of the first (last)
// eight in bits 4p.. and number 2p + 1 in bits 16 + 4p.., low nibbles only. Dword 2: upper bits of the first eight at 2p
// and 16 + 2p, of the last at 8 + 2p and 24 + 2p. So a shift and a mask give a pair of 16-bit numbers.
struct SixBits {
    uint32_t v[4];
};

// Low nibbles of bytes 0, 2, 4, 6 side by side in bits 0..15.
uint32_t even_nibbles(uint64_t bytes) {
    uint64_t x = bytes & 0x000f000f000f000full;
    x = (x | x >> 12) & 0x000000ff000000ffull;
    return static_cast<uint32_t>((x | x >> 24) & 0xffff);
}
// Bits 4 and 5 of bytes 0, 2, 4, 6 side by side in bits 0..7.
uint32_t even_upper_bits(uint64_t bytes) {
    uint64_t x = bytes >> 4 & 0x0003000300030003ull;
    x = (x | x >> 14) & 0x0000000f0000000full;
    return static_cast<uint32_t>((x | x >> 28) & 0xff);
}

void pack_six_bits(const Lane& lane, int64_t offset, const SixBits& numbers) {
    uint32_t upper = 0;
    for (int i = 0; i < 2; i++) {
        const uint64_t eight = numbers.v[2 * i] | static_cast<uint64_t>(numbers.v[2 * i + 1]) << 32;
        lane.dword(offset, i, even_nibbles(eight) | even_nibbles(eight >> 8) << 16);
        upper |= (even_upper_bits(eight) | even_upper_bits(eight >> 8) << 16) << (8 * i);
    }
    lane.dword(offset, 2, upper);
}

// The 12 bytes of Q4_K and Q5_K: eight scales, then eight minima; upper bits of the last four of each lie above those of
// the first four.
void pack_k_scales(const Lane& lane, const uint8_t* s) {
    const uint32_t scales = load32(s), minima = load32(s + 4), rest = load32(s + 8);
    pack_six_bits(lane, 64,
                  {{scales & 0x3f3f3f3fu, (rest & 0x0f0f0f0fu) | (scales >> 2 & 0x30303030u), minima & 0x3f3f3f3fu,
                    (rest >> 4 & 0x0f0f0f0fu) | (minima >> 2 & 0x30303030u)}});
}

// The 12 bytes of Q3_K: low nibbles of scales 0..7 and 8..15, then their upper bits, four to a byte.
void pack_q3_k_scales(const Lane& lane, const uint8_t* s) {
    const uint32_t low = load32(s), high = load32(s + 4), upper = load32(s + 8);
    const auto four = [&](uint32_t nibbles, int i) {
        return (nibbles & 0x0f0f0f0fu) | (upper >> (2 * i) & 0x03030303u) << 4;
    };
    pack_six_bits(lane, 0, {{four(low, 0), four(high, 1), four(low >> 4, 2), four(high >> 4, 3)}});
}

// NF4: f32 absmax, then 32 bytes with element 2i in the high nibble (the order of bitsandbytes).
void pack_nf4(const Lane& lane, const uint8_t* src) {
    lane.dword(0, 0, load32(src));
    const auto element = [&](int i) -> uint32_t { return i % 2 ? src[4 + i / 2] & 15u : static_cast<uint32_t>(src[4 + i / 2] >> 4); };
    for (int i = 0; i < 8; i++) {
        uint32_t v = 0;
        for (int b = 0; b < 4; b++) v |= (element(4 * i + b) | element(32 + 4 * i + b) << 4) << (8 * b);
        lane.dword(64, i, v);
    }
}

// Block `b` (0 or 1) of a unit of 64.
void pack_block(WeightType type, const Lane& lane, const uint8_t* src, int64_t b) {
    switch (type) {
        case WeightType::Q4_0:
        case WeightType::IQ4_NL:
            lane.half(32 * b, src);
            lane.dwords(64 + 256 * b, src + 2, 4);
            break;
        case WeightType::Q4_1:
            lane.half(32 * b, src);
            lane.half(64 + 32 * b, src + 2);
            lane.dwords(128 + 256 * b, src + 4, 4);
            break;
        case WeightType::Q5_0:
            lane.half(32 * b, src);
            lane.dword(64, b, spread_fifth_bits(load32(src + 2)));
            lane.dwords(192 + 256 * b, src + 6, 4);
            break;
        case WeightType::Q5_1:
            lane.half(32 * b, src);
            lane.half(64 + 32 * b, src + 2);
            lane.dword(128, b, spread_fifth_bits(load32(src + 4)));
            lane.dwords(256 + 256 * b, src + 8, 4);
            break;
        case WeightType::Q8_0:
            lane.half(32 * b, src);
            lane.dwords(64 + 512 * b, src + 2, 8);
            break;
        default: break;
    }
}

// A superblock, or an NF4 block. `line` is its half line, for the types that keep their scale there.
void pack_unit(WeightType type, const Lane& lane, const Lane& line, const uint8_t* src) {
    switch (type) {
        case WeightType::NF4: pack_nf4(lane, src); break;
        case WeightType::Q2_K:
            lane.half(0, src + 80);
            lane.half(32, src + 82);
            lane.dwords(64, src, 4);
            lane.dwords(320, src + 16, 16);
            break;
        case WeightType::Q3_K:
            line.half(0, src + 108);
            pack_q3_k_scales(lane, src + 96);
            lane.interleave(192, src, src + 32);
            lane.dwords(1216, src + 64, 8);
            break;
        case WeightType::Q4_K:
            lane.half(0, src);
            lane.half(32, src + 2);
            pack_k_scales(lane, src + 4);
            lane.dwords(256, src + 16, 32);
            break;
        case WeightType::Q5_K:
            lane.half(0, src);
            lane.half(32, src + 2);
            pack_k_scales(lane, src + 4);
            lane.interleave(256, src + 16, src + 48);
            lane.dwords(1280, src + 80, 24);
            break;
        case WeightType::Q6_K:
            line.half(0, src + 208);
            lane.dwords(0, src + 192, 4);
            for (int64_t half = 0; half < 2; half++) {
                lane.interleave(256 + 1536 * half, src + 64 * half, src + 128 + 32 * half);
                lane.dwords(1280 + 1536 * half, src + 64 * half + 32, 8);
            }
            break;
        case WeightType::IQ4_XS:
            lane.half(0, src);
            lane.half(32, src + 2);
            lane.dwords(64, src + 4, 1);
            lane.dwords(128, src + 8, 32);
            break;
        default: break;
    }
}

// One row of a panel of a float type: dst[k][row].
void pack_floats(const uint8_t* src, int64_t k, size_t size, int64_t row, uint8_t* dst) {
    for (int64_t i = 0; i < k; i++)
        std::memcpy(dst + static_cast<size_t>(i * kPanelRows + row) * size, src + static_cast<size_t>(i) * size, size);
}

void pack_panel(WeightType type, const uint8_t* src, int64_t rows, int64_t k, uint8_t* dst) {
    const WeightTypeInfo& info = weight_type_info(type);
    const PackedLayout layout = packed_layout(type);
    const int64_t row_bytes = k / info.block_size * info.block_bytes;
    if (rows < kPanelRows || k % layout.unit != 0) std::memset(dst, 0, static_cast<size_t>(panel_bytes(type, k)));
    if (info.block_size == 1) {
        for (int64_t r = 0; r < rows; r++) pack_floats(src + r * row_bytes, k, static_cast<size_t>(info.block_bytes), r, dst);
        return;
    }
    const int64_t blocks_per_unit = layout.unit / info.block_size;
    for (int64_t u = 0; u < num_units(layout, k); u++) {
        for (int64_t r = 0; r < rows; r++) {
            const Lane lane{dst + unit_offset(layout, u), r};
            const int64_t first = u * blocks_per_unit;
            if (blocks_per_unit == 1) {
                pack_unit(type, lane, {dst + line_offset(layout, u), r}, src + r * row_bytes + first * info.block_bytes);
                continue;
            }
            for (int64_t b = 0; b < blocks_per_unit && (first + b) * info.block_size < k; b++)
                pack_block(type, lane, src + r * row_bytes + (first + b) * info.block_bytes, b);
        }
    }
}

}  // namespace

const WeightTypeInfo* find_weight_type(std::string_view name) {
    for (const WeightTypeInfo& info : kTypes)
        if (name == info.name) return &info;
    return nullptr;
}

const WeightTypeInfo& weight_type_info(WeightType type) { return kTypes[static_cast<size_t>(type)]; }

size_t packed_size(WeightType type, int64_t n, int64_t k) { return static_cast<size_t>(num_panels(n) * panel_bytes(type, k)); }

void pack(WeightType type, const uint8_t* src, int64_t n, int64_t k, int64_t panel_begin, int64_t panel_end, uint8_t* dst) {
    const WeightTypeInfo& info = weight_type_info(type);
    const int64_t row_bytes = k / info.block_size * info.block_bytes;
    for (int64_t panel = panel_begin; panel < panel_end; panel++) {
        const int64_t rows = std::min(kPanelRows, n - panel * kPanelRows);
        pack_panel(type, src + panel * kPanelRows * row_bytes, rows, k, dst + panel * panel_bytes(type, k));
    }
}

size_t acts_size(int64_t m, int64_t k) {
    return static_cast<size_t>(m * ((k + kSuperBlock - 1) / kSuperBlock)) * sizeof(ActBlock);
}

}  // namespace specdec

// Repacking of weights into panels of 16 rows; the layouts are described in layout.h.
#include "layout.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace specdec {
namespace {

constexpr WeightTypeInfo kTypes[] = {
    {WeightType::F32, "F32", 1, 4},          {WeightType::F16, "F16", 1, 2},
    {WeightType::BF16, "BF16", 1, 2},        {WeightType::Q4_0, "Q4_0", 32, 18},
    {WeightType::Q4_1, "Q4_1", 32, 20},      {WeightType::Q5_0, "Q5_0", 32, 22},
    {WeightType::Q5_1, "Q5_1", 32, 24},      {WeightType::Q8_0, "Q8_0", 32, 34},
    {WeightType::Q2_K, "Q2_K", 256, 84},     {WeightType::Q3_K, "Q3_K", 256, 110},
    {WeightType::Q4_K, "Q4_K", 256, 144},    {WeightType::Q5_K, "Q5_K", 256, 176},
    {WeightType::Q6_K, "Q6_K", 256, 210},    {WeightType::IQ4_NL, "IQ4_NL", 32, 18},
    {WeightType::IQ4_XS, "IQ4_XS", 256, 136}, {WeightType::NF4, "NF4", 64, 36},
};

// dst[k][lane] for elements of `size` bytes.
void pack_elements(const uint8_t* src, int64_t n, int64_t k, int64_t panel, size_t size, uint8_t* dst) {
    const int64_t rows = std::min(kPanelRows, n - panel * kPanelRows);
    std::memset(dst, 0, static_cast<size_t>(k * kPanelRows) * size);
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t* row = src + static_cast<size_t>((panel * kPanelRows + r) * k) * size;
        for (int64_t i = 0; i < k; i++) std::memcpy(dst + static_cast<size_t>(i * kPanelRows + r) * size, row + static_cast<size_t>(i) * size, size);
    }
}

}  // namespace

const WeightTypeInfo* find_weight_type(std::string_view name) {
    for (const WeightTypeInfo& info : kTypes)
        if (name == info.name) return &info;
    return nullptr;
}

const WeightTypeInfo& weight_type_info(WeightType type) { return kTypes[static_cast<size_t>(type)]; }

size_t panel_bytes(WeightType type, int64_t k) {
    const WeightTypeInfo& info = weight_type_info(type);
    const auto bytes = static_cast<size_t>(k / info.block_size * info.block_bytes * kPanelRows);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t packed_size(WeightType type, int64_t n, int64_t k) {
    return static_cast<size_t>(num_panels(n)) * panel_bytes(type, k);
}

void pack(WeightType type, const uint8_t* src, int64_t n, int64_t k, int64_t panel_begin, int64_t panel_end, uint8_t* dst) {
    const size_t bytes = panel_bytes(type, k);
    for (int64_t panel = panel_begin; panel < panel_end; panel++) {
        uint8_t* out = dst + static_cast<size_t>(panel) * bytes;
        switch (type) {
            case WeightType::F32: pack_elements(src, n, k, panel, 4, out); break;
            case WeightType::F16:
            case WeightType::BF16: pack_elements(src, n, k, panel, 2, out); break;
            default: throw std::invalid_argument(std::string("no kernel for ") + weight_type_info(type).name);
        }
    }
}

size_t acts_size(int64_t m, int64_t k) {
    return static_cast<size_t>(m * ((k + kSuperBlock - 1) / kSuperBlock)) * sizeof(ActBlock);
}

}  // namespace specdec

// Matrix kernels: packed weights, quantized activations, and one dispatch table per ISA. Plain C++, no Python.
//
// y = x @ W.T + bias for W with N rows and K columns. A vector lane is an output row of W: weights are repacked into
// panels of 16 rows. Activations are int8 in blocks of 32 with one scale each (float weights: the activations stay
// float32). The value of an output element depends on its row of x and its row of W only: not on the number of rows,
// the range [n_begin, n_end) or the tile. All ISAs give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "isa.h"

namespace specdec {

// Part of every fingerprint of cached state (KV on disk): raise it when results or layouts change.
constexpr int kKernelRevision = 1;

constexpr int64_t kPanelRows = 16;  // rows of W per panel; threads split N at multiples of this
constexpr size_t kAlignment = 64;   // of packed weights and activation workspaces
constexpr int64_t kActUnit = 256;   // activations that are quantized together

enum class WeightType : uint8_t {
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, NF4,
};

struct WeightTypeInfo {
    WeightType type;
    const char* name;     // as in quant/types.py
    int64_t block_size;   // K is a multiple of this
    int64_t block_bytes;  // of the unpacked format
};

// nullptr for a name that has no fast path.
const WeightTypeInfo* find_weight_type(std::string_view name);
const WeightTypeInfo& weight_type_info(WeightType type);

// A view of packed weights; the memory belongs to the caller and is aligned to kAlignment.
struct PackedMatrix {
    WeightType type{};
    int64_t n = 0, k = 0;
    const uint8_t* data = nullptr;
};

// Bytes of the packed form, a multiple of kAlignment.
size_t packed_size(WeightType type, int64_t n, int64_t k);
static constexpr int64_t num_panels(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

// Repacks panels [panel_begin, panel_end) of `src` (row-major, n rows of k / block_size * block_bytes bytes) into `dst`
// (the whole packed buffer); disjoint ranges may run on several threads. Lanes past row n become zeros.
void pack(WeightType type, const uint8_t* src, int64_t n, int64_t k, int64_t panel_begin, int64_t panel_end, uint8_t* dst);

// Activations of `m` rows prepared for matmul against any packed type, in a caller's workspace of acts_size() bytes.
// `x` stays referenced: float weights read it.
struct Activations {
    const float* x = nullptr;  // [m][ldx]
    size_t ldx = 0;
    int64_t m = 0, k = 0;
    void* workspace = nullptr;  // aligned to kAlignment
};
size_t acts_size(int64_t m, int64_t k);

struct Kernels {
    Isa isa;

    // Fills rows [m_begin, m_end) of the workspace. Row-invariant; threads may split rows.
    void (*quantize)(const Activations& a, int64_t m_begin, int64_t m_end);

    // The same for elements [k_begin, k_end) of row m only: k_begin a multiple of kActUnit, k_end too or a.k.
    void (*quantize_range)(const Activations& a, int64_t m, int64_t k_begin, int64_t k_end);

    // y[i][n] for all a.m rows and n in [n_begin, n_end): n_begin a multiple of kPanelRows, n_end too or w.n.
    // `y` points at element [0][0] of the whole result; bias has w.n elements or is nullptr. Float weight types do not
    // need quantize().
    void (*matmul)(const PackedMatrix& w, const Activations& a, float* y, size_t ldy, int64_t n_begin, int64_t n_end,
                   const float* bias);

    // Row `row` of W as float32 [k]; equals the reference dequantization of the unpacked bytes (NF4: to 1e-3).
    void (*dequantize_row)(const PackedMatrix& w, int64_t row, float* out);
};

// `isa` must be one of available_isas().
const Kernels& kernels_for(Isa isa);
const Kernels& active_kernels();  // kernels_for(active_isa())

}  // namespace specdec

// Operations on single rows of float32: norms, activations, RoPE, scans of logits. One dispatch table per ISA; all
// ISAs give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace specdec {

enum class GateActivation : uint8_t { silu, gelu_tanh };

constexpr int64_t kScanBlock = 64;  // logits per block of scan_blocks

struct RowKernels {
    // x / sqrt(mean(x^2) + eps) * weight over each of n / group groups of `group` elements; out may be x.
    void (*rms_norm)(const float* x, const float* weight, float eps, float* out, int64_t n, int64_t group);
    void (*add)(const float* a, const float* b, float* out, int64_t n);       // out may be a or b
    void (*scale)(const float* x, float factor, float* out, int64_t n);       // out may be x
    void (*softcap)(const float* x, float cap, float* out, int64_t n);        // cap * tanh(x / cap); out may be x
    void (*gated)(GateActivation activation, const float* gate, const float* up, float* out, int64_t n);
    // Rotates pairs (x[i], x[i + half]) for i < half; cosine and sine have `half` elements. out may be x.
    void (*rope)(const float* x, const float* cosine, const float* sine, float* out, int64_t half);
    // Maximum of each block of kScanBlock elements. Returns false when an element is not finite.
    bool (*scan_blocks)(const float* x, int64_t n, float* maxima);
};

const RowKernels& row_kernels_for(Isa isa);

// Index of the largest element, the lowest one on ties; `maxima` are those of scan_blocks.
int64_t argmax_from_blocks(const float* x, int64_t n, const float* maxima);

// The k largest of n elements, largest first, ties by lowest index. Requires 1 <= k <= n and no NaN.
void top_k_from_blocks(const float* x, int64_t n, const float* maxima, int64_t k, int32_t* ids, float* values);

}  // namespace specdec

// Memory layouts that pack.cpp writes and kernels.cpp reads.
#pragma once

#include "kernels.h"

namespace specdec {

constexpr int kBlock = 32;        // activations that share a scale
constexpr int kSuperBlock = 256;  // activations of one ActBlock

// 256 consecutive activations of one row; a workspace is ActBlock[ceil(k / 256)][m], elements past k are zeros.
struct alignas(64) ActBlock {
    int8_t q[kSuperBlock];
    float scale[8];  // per 32
};

// Bytes of one panel, a multiple of kAlignment; panels follow one another.
size_t panel_bytes(WeightType type, int64_t k);

}  // namespace specdec

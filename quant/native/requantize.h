// From a packed type to Q4_0, for draft models that are put on a diet while they are loaded. Plain C++, no Python.
//
// The scale search is that of quant/quantizers.py, where it is explained; all ISAs give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "isa.h"

namespace specdec {

enum class SourceFormat : uint8_t { F32, F16, BF16, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

struct SourceInfo {
    SourceFormat format;
    const char* name;  // as in quant/types.py
    int64_t values;    // of a block; floats are read in groups of 32
    int64_t bytes;
};

// nullptr for a type that is not read here.
const SourceInfo* find_source(std::string_view name);

constexpr int64_t kQ4_0Values = 32, kQ4_0Bytes = 18;

struct RequantizeKernels {
    // `count` blocks to Q4_0, which `out` has room for. False when values are not finite or too large.
    bool (*to_q4_0)(const SourceInfo& source, const uint8_t* blocks, int64_t count, uint8_t* out);
};

const RequantizeKernels& requantize_kernels_for(Isa isa);

}  // namespace specdec

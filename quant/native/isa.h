// Instruction sets: which are in this build, which the CPU has, which one is in use.
#pragma once

#include <string_view>
#include <vector>

#include "isa_config.h"

namespace specdec {

enum class Isa { scalar, avx2, avx_vnni, avx512, avx512_vnni, neon };

const char* isa_name(Isa isa);

// In this build and supported by the CPU and the operating system; worst first, scalar always among them.
std::vector<Isa> available_isas();

// Throws std::invalid_argument for an unknown name and std::runtime_error for one that cannot run here.
Isa parse_isa(std::string_view name);

// The one named by the environment variable SPECDEC_FORCE_ISA (throws like parse_isa), else the best available.
Isa active_isa();

}  // namespace specdec

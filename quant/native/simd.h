// The vector operations that kernels are written in, for the ISA this source is compiled for. `vf` and `vi` hold
// kLanes floats / int32; one name is one instruction or a fixed sequence, so a formula has the same bits everywhere.
// Include only from sources in ISA_SOURCES.
#pragma once

#if !defined(SPECDEC_ISA)
#error "simd.h is for sources that are compiled once per ISA"
#endif

#if defined(SPECDEC_ISA_AVX512) || defined(SPECDEC_ISA_AVX512_VNNI)
#include "simd_avx512.h"
#elif defined(SPECDEC_ISA_AVX2) || defined(SPECDEC_ISA_AVX_VNNI)
#include "simd_avx2.h"
#elif defined(SPECDEC_ISA_NEON)
#include "simd_neon.h"
#else
#include "simd_scalar.h"
#endif

#pragma once

#include <immintrin.h>

#include <cstdint>

namespace specdec::SPECDEC_ISA {
namespace {

constexpr int kLanes = 8;
using vf = __m256;
using vi = __m256i;

inline vf vf_zero() { return _mm256_setzero_ps(); }
inline vf vf_set(float x) { return _mm256_set1_ps(x); }
inline vf vf_load(const float* p) { return _mm256_loadu_ps(p); }
inline void vf_store(float* p, vf v) { _mm256_storeu_ps(p, v); }
inline vf vf_load_f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline vf vf_load_bf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline void vf_store_f16(void* p, vf v) {  // round to nearest even
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
inline vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
inline vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }               // a > b ? a : b
inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }               // a < b ? a : b
inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline vf vf_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
inline vi vf_to_int(vf a) { return _mm256_cvtps_epi32(a); }  // round to nearest even
inline vf vf_bits(vi a) { return _mm256_castsi256_ps(a); }
inline vi vi_bits(vf a) { return _mm256_castps_si256(a); }

inline vi vi_zero() { return _mm256_setzero_si256(); }
inline vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
inline vi vi_load(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void vi_store(void* p, vi v) { _mm256_storeu_si256((__m256i*)p, v); }
inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
inline vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
template <int N> inline vi vi_shl(vi a) { return _mm256_slli_epi32(a, N); }
template <int N> inline vi vi_shr(vi a) { return _mm256_srli_epi32(a, N); }
template <int N> inline vi vi_sar(vi a) { return _mm256_srai_epi32(a, N); }

}  // namespace
}  // namespace specdec::SPECDEC_ISA

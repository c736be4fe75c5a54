#pragma once

#include <immintrin.h>

#include <cstdint>

namespace specdec::SPECDEC_ISA {
namespace {

constexpr int kLanes = 16;
using vf = __m512;
using vi = __m512i;

inline vf vf_zero() { return _mm512_setzero_ps(); }
inline vf vf_set(float x) { return _mm512_set1_ps(x); }
inline vf vf_load(const float* p) { return _mm512_loadu_ps(p); }
inline void vf_store(float* p, vf v) { _mm512_storeu_ps(p, v); }
inline vf vf_load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline vf vf_load_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline void vf_store_f16(void* p, vf v) {  // round to nearest even
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }               // a > b ? a : b
inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }               // a < b ? a : b
inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }
inline vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
inline vi vf_to_int(vf a) { return _mm512_cvtps_epi32(a); }  // round to nearest even
inline vf vf_bits(vi a) { return _mm512_castsi512_ps(a); }
inline vi vi_bits(vf a) { return _mm512_castps_si512(a); }

inline vi vi_zero() { return _mm512_setzero_si512(); }
inline vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
inline vi vi_load(const void* p) { return _mm512_loadu_si512(p); }
inline void vi_store(void* p, vi v) { _mm512_storeu_si512(p, v); }
inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
inline vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
template <int N> inline vi vi_shl(vi a) { return _mm512_slli_epi32(a, N); }
template <int N> inline vi vi_shr(vi a) { return _mm512_srli_epi32(a, N); }
template <int N> inline vi vi_sar(vi a) { return _mm512_srai_epi32(a, N); }

inline vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
// Products of 16-bit halves, summed per lane.
inline vi vi_madd16(vi a, vi b) { return _mm512_madd_epi16(a, b); }
// (a & mask) | b
inline vi vi_and_or(vi a, vi mask, vi b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xEA); }
inline vi vi_load_u16(const void* p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)); }
inline void vi_store_s8(void* p, vi v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(v)); }
inline int32_t vi_reduce_add(vi a) { return _mm512_reduce_add_epi32(a); }
inline int32_t vi_reduce_max(vi a) { return _mm512_reduce_max_epi32(a); }
// Bytes of a 16-entry table (16-byte aligned), indexed by the bytes of `index`, each below 16.
inline vi vi_lookup(const int8_t* table, vi index) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), index);
}
// Into the second-level cache.
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

#if defined(SPECDEC_ISA_AVX512_VNNI)
// vi_dot: sum over `Groups` quads of x of weight byte * x byte; weights unsigned and at most Max. Exact.
template <int Groups, int Max> inline vi vi_dot(vi sum, const vi* w, const int8_t* x) {
    for (int g = 0; g < Groups; g++) {
        int32_t quad;
        __builtin_memcpy(&quad, x + 4 * g, 4);
        sum = _mm512_dpbusd_epi32(sum, w[g], _mm512_set1_epi32(quad));
    }
    return sum;
}
constexpr bool kSignedDot = false;  // signed weights are offset by 128 and go through vi_dot
template <int Groups> inline vi vi_dot_signed(vi sum, const vi*, const int8_t*) { return sum; }
#else
template <int Groups, int Max> inline vi vi_dot(vi sum, const vi* w, const int8_t* x) {
    constexpr int kPairs = 32767 / (2 * 127 * Max);  // products that 16 bits hold
    static_assert(kPairs >= 1);
    for (int g = 0; g < Groups;) {
        vi part = vi_zero();
        for (int i = 0; i < kPairs && g < Groups; i++, g++) {
            int32_t quad;
            __builtin_memcpy(&quad, x + 4 * g, 4);
            const vi products = _mm512_maddubs_epi16(w[g], _mm512_set1_epi32(quad));
            part = i == 0 ? products : _mm512_add_epi16(part, products);
        }
        sum = vi_add(sum, _mm512_madd_epi16(part, _mm512_set1_epi16(1)));
    }
    return sum;
}
constexpr bool kSignedDot = true;
// Signed weights: |w| times x with the sign of w moved to x; |w| <= 128 and |x| <= 127 cannot saturate.
template <int Groups> inline vi vi_dot_signed(vi sum, const vi* w, const int8_t* x) {
    for (int g = 0; g < Groups; g++) {
        int32_t quad;
        __builtin_memcpy(&quad, x + 4 * g, 4);
        const vi xv = _mm512_set1_epi32(quad);
        const vi signed_x = _mm512_mask_sub_epi8(xv, _mm512_movepi8_mask(w[g]), vi_zero(), xv);
        const vi products = _mm512_maddubs_epi16(_mm512_abs_epi8(w[g]), signed_x);
        sum = vi_add(sum, _mm512_madd_epi16(products, _mm512_set1_epi16(1)));
    }
    return sum;
}
#endif

}  // namespace
}  // namespace specdec::SPECDEC_ISA

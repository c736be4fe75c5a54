#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace specdec::SPECDEC_ISA {
namespace {

constexpr int kLanes = 4;
using vf = float32x4_t;
using vi = int32x4_t;

inline vf vf_zero() { return vdupq_n_f32(0.0f); }
inline vf vf_set(float x) { return vdupq_n_f32(x); }
inline vf vf_load(const float* p) { return vld1q_f32(p); }
inline void vf_store(float* p, vf v) { vst1q_f32(p, v); }
inline vf vf_load_f16(const void* p) {
    uint16x4_t h;
    std::memcpy(&h, p, sizeof h);
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}
inline vf vf_load_bf16(const void* p) {
    uint16x4_t h;
    std::memcpy(&h, p, sizeof h);
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}
inline void vf_store_f16(void* p, vf v) {  // round to nearest even
    const uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32(v));
    std::memcpy(p, &h, sizeof h);
}
inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
inline vf vf_sqrt(vf a) { return vsqrtq_f32(a); }
inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }                       // a * b + c
inline vf vf_fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }                      // c - a * b
inline vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }               // a > b ? a : b
inline vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }               // a < b ? a : b
inline vf vf_abs(vf a) { return vabsq_f32(a); }
inline vf vf_from_int(vi a) { return vcvtq_f32_s32(a); }
inline vi vf_to_int(vf a) { return vcvtnq_s32_f32(a); }  // round to nearest even
inline vf vf_bits(vi a) { return vreinterpretq_f32_s32(a); }
inline vi vi_bits(vf a) { return vreinterpretq_s32_f32(a); }

inline vi vi_zero() { return vdupq_n_s32(0); }
inline vi vi_set(int32_t x) { return vdupq_n_s32(x); }
inline vi vi_load(const void* p) {
    vi v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void vi_store(void* p, vi v) { std::memcpy(p, &v, sizeof v); }
inline vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
inline vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
inline vi vi_mul(vi a, vi b) { return vmulq_s32(a, b); }
inline vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
inline vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
inline vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
template <int N> inline vi vi_shl(vi a) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(N))); }
template <int N> inline vi vi_shr(vi a) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-N))); }
template <int N> inline vi vi_sar(vi a) { return vshlq_s32(a, vdupq_n_s32(-N)); }

inline vi vi_max(vi a, vi b) { return vmaxq_s32(a, b); }
// Products of 16-bit halves, summed per lane.
inline vi vi_madd16(vi a, vi b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
// (a & mask) | b
inline vi vi_and_or(vi a, vi mask, vi b) { return vorrq_s32(vandq_s32(a, mask), b); }
inline vi vi_load_u16(const void* p) {
    uint16x4_t h;
    std::memcpy(&h, p, sizeof h);
    return vreinterpretq_s32_u32(vmovl_u16(h));
}
inline void vi_store_s8(void* p, vi v) {
    const int16x4_t words = vmovn_s32(v);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    std::memcpy(p, &bytes, 4);
}
inline int32_t vi_reduce_add(vi a) { return vaddvq_s32(a); }
inline int32_t vi_reduce_max(vi a) { return vmaxvq_s32(a); }
// Bytes of a 16-entry table, indexed by the bytes of `index`, each below 16.
inline vi vi_lookup(const int8_t* table, vi index) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s32(index)));
}
inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// Sum over `Groups` quads of x of weight byte * x byte; weights fit int8. Exact.
template <int Groups> inline vi vi_dot_signed(vi sum, const vi* w, const int8_t* x) {
    for (int g = 0; g < Groups; g += 4) {
        const int8x16_t xv = vld1q_s8(x + 4 * g);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(w[g]), xv, 0);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(w[g + 1]), xv, 1);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(w[g + 2]), xv, 2);
        sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(w[g + 3]), xv, 3);
    }
    return sum;
}
constexpr bool kSignedDot = true;
template <int Groups, int Max> inline vi vi_dot(vi sum, const vi* w, const int8_t* x) {
    static_assert(Max <= 127);
    return vi_dot_signed<Groups>(sum, w, x);
}

}  // namespace
}  // namespace specdec::SPECDEC_ISA

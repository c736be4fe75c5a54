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

}  // namespace
}  // namespace specdec::SPECDEC_ISA

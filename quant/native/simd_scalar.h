#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>

namespace specdec::SPECDEC_ISA {
namespace {

// Plain C++ over four lanes: the specification of the vector operations, and the fallback.
constexpr int kLanes = 4;
struct vf {
    float v[kLanes];
};
struct vi {
    int32_t v[kLanes];
};

template <class F> inline vf vf_each(F f) {
    vf r;
    for (int i = 0; i < kLanes; i++) r.v[i] = f(i);
    return r;
}
template <class F> inline vi vi_each(F f) {
    vi r;
    for (int i = 0; i < kLanes; i++) r.v[i] = static_cast<int32_t>(f(i));
    return r;
}

// IEEE binary16 to binary32, exact.
inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
    float magnitude;
    if (exponent == 0) {
        magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    } else {
        const uint32_t bits = (exponent == 31 ? 255u : exponent + 112u) << 23 | mantissa << 13;
        std::memcpy(&magnitude, &bits, 4);
    }
    uint32_t bits;
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
    std::memcpy(&magnitude, &bits, 4);
    return magnitude;
}
// binary32 to binary16, round to nearest even; NaN stays a quiet NaN.
inline uint16_t f32_to_f16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal: let the float unit round at the right place
        float f;
        std::memcpy(&f, &magnitude, 4);
        f += 0.5f;
        uint32_t rounded;
        std::memcpy(&rounded, &f, 4);
        return static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline vf vf_set(float x) { return vf_each([=](int) { return x; }); }
inline vf vf_zero() { return vf_set(0.0f); }
inline vf vf_load(const float* p) {
    vf r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline void vf_store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline vf vf_load_f16(const void* p) {
    uint16_t h[kLanes];
    std::memcpy(h, p, sizeof h);
    return vf_each([&](int i) { return f16_to_f32(h[i]); });
}
inline vf vf_load_bf16(const void* p) {
    uint16_t h[kLanes];
    std::memcpy(h, p, sizeof h);
    return vf_each([&](int i) {
        const uint32_t bits = static_cast<uint32_t>(h[i]) << 16;
        float f;
        std::memcpy(&f, &bits, 4);
        return f;
    });
}
inline void vf_store_f16(void* p, vf v) {  // round to nearest even
    uint16_t h[kLanes];
    for (int i = 0; i < kLanes; i++) h[i] = f32_to_f16(v.v[i]);
    std::memcpy(p, h, sizeof h);
}
inline vf vf_add(vf a, vf b) { return vf_each([&](int i) { return a.v[i] + b.v[i]; }); }
inline vf vf_sub(vf a, vf b) { return vf_each([&](int i) { return a.v[i] - b.v[i]; }); }
inline vf vf_mul(vf a, vf b) { return vf_each([&](int i) { return a.v[i] * b.v[i]; }); }
inline vf vf_div(vf a, vf b) { return vf_each([&](int i) { return a.v[i] / b.v[i]; }); }
inline vf vf_sqrt(vf a) { return vf_each([&](int i) { return __builtin_sqrtf(a.v[i]); }); }
inline vf vf_fma(vf a, vf b, vf c) { return vf_each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); }); }    // a * b + c
inline vf vf_fnma(vf a, vf b, vf c) { return vf_each([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); }); }  // c - a * b
inline vf vf_max(vf a, vf b) { return vf_each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }  // a > b ? a : b
inline vf vf_min(vf a, vf b) { return vf_each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }  // a < b ? a : b
inline vf vf_abs(vf a) { return vf_each([&](int i) { return __builtin_fabsf(a.v[i]); }); }
inline vf vf_from_int(vi a) { return vf_each([&](int i) { return static_cast<float>(a.v[i]); }); }
inline vi vf_to_int(vf a) {  // round to nearest even; out of range and NaN give INT32_MIN
    return vi_each([&](int i) {
        const float r = __builtin_rintf(a.v[i]);
        return r >= -0x1p31f && r < 0x1p31f ? static_cast<int32_t>(r) : INT32_MIN;
    });
}
inline vf vf_bits(vi a) {
    vf r;
    std::memcpy(&r, &a, sizeof r);
    return r;
}
inline vi vi_bits(vf a) {
    vi r;
    std::memcpy(&r, &a, sizeof r);
    return r;
}

inline vi vi_set(int32_t x) { return vi_each([=](int) { return x; }); }
inline vi vi_zero() { return vi_set(0); }
inline vi vi_load(const void* p) {
    vi r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline void vi_store(void* p, vi v) { std::memcpy(p, &v, sizeof v); }
inline uint32_t u32(int32_t x) { return static_cast<uint32_t>(x); }
inline vi vi_add(vi a, vi b) { return vi_each([&](int i) { return u32(a.v[i]) + u32(b.v[i]); }); }
inline vi vi_sub(vi a, vi b) { return vi_each([&](int i) { return u32(a.v[i]) - u32(b.v[i]); }); }
inline vi vi_mul(vi a, vi b) { return vi_each([&](int i) { return u32(a.v[i]) * u32(b.v[i]); }); }
inline vi vi_and(vi a, vi b) { return vi_each([&](int i) { return a.v[i] & b.v[i]; }); }
inline vi vi_or(vi a, vi b) { return vi_each([&](int i) { return a.v[i] | b.v[i]; }); }
inline vi vi_xor(vi a, vi b) { return vi_each([&](int i) { return a.v[i] ^ b.v[i]; }); }
template <int N> inline vi vi_shl(vi a) { return vi_each([&](int i) { return u32(a.v[i]) << N; }); }
template <int N> inline vi vi_shr(vi a) { return vi_each([&](int i) { return u32(a.v[i]) >> N; }); }
template <int N> inline vi vi_sar(vi a) { return vi_each([&](int i) { return a.v[i] >> N; }); }

}  // namespace
}  // namespace specdec::SPECDEC_ISA

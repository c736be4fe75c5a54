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

inline vi vi_max(vi a, vi b) { return vi_each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
// Products of 16-bit halves, summed per lane.
inline vi vi_madd16(vi a, vi b) {
    const auto low = [](int32_t x) { return static_cast<int32_t>(static_cast<int16_t>(x & 0xffff)); };
    return vi_each([&](int i) { return low(a.v[i]) * low(b.v[i]) + (a.v[i] >> 16) * (b.v[i] >> 16); });
}
// (a & mask) | b
inline vi vi_and_or(vi a, vi mask, vi b) { return vi_or(vi_and(a, mask), b); }
inline vi vi_load_u16(const void* p) {
    uint16_t h[kLanes];
    std::memcpy(h, p, sizeof h);
    return vi_each([&](int i) { return h[i]; });
}
inline void vi_store_s8(void* p, vi v) {
    for (int i = 0; i < kLanes; i++) static_cast<int8_t*>(p)[i] = static_cast<int8_t>(v.v[i]);
}
inline int32_t vi_reduce_add(vi a) { return a.v[0] + a.v[1] + a.v[2] + a.v[3]; }
inline int32_t vi_reduce_max(vi a) {
    int32_t r = a.v[0];
    for (int i = 1; i < kLanes; i++) r = a.v[i] > r ? a.v[i] : r;
    return r;
}
// Bytes of a 16-entry table, indexed by the bytes of `index`, each below 16.
inline vi vi_lookup(const int8_t* table, vi index) {
    uint8_t bytes[4 * kLanes];
    std::memcpy(bytes, &index, sizeof bytes);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(table[b]);
    vi r;
    std::memcpy(&r, bytes, sizeof r);
    return r;
}
inline void prefetch(const void*) {}

// Sum over `Groups` quads of x of weight byte * x byte. Exact.
template <class Byte, int Groups> inline vi dot_bytes(vi sum, const vi* w, const int8_t* x) {
    for (int g = 0; g < Groups; g++) {
        Byte bytes[4 * kLanes];
        std::memcpy(bytes, &w[g], sizeof bytes);
        for (int i = 0; i < kLanes; i++)
            for (int b = 0; b < 4; b++) sum.v[i] += bytes[4 * i + b] * x[4 * g + b];
    }
    return sum;
}
template <int Groups, int Max> inline vi vi_dot(vi sum, const vi* w, const int8_t* x) { return dot_bytes<uint8_t, Groups>(sum, w, x); }
constexpr bool kSignedDot = true;
template <int Groups> inline vi vi_dot_signed(vi sum, const vi* w, const int8_t* x) { return dot_bytes<int8_t, Groups>(sum, w, x); }

}  // namespace
}  // namespace specdec::SPECDEC_ISA

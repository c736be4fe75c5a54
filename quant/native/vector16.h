// Sixteen float lanes whatever the ISA's width, and the elementary functions of the engine: one sequence of IEEE
// operations each, so that every path and every ISA gives the same bits. Include only from sources in ISA_SOURCES.
#pragma once

#include "simd.h"

namespace specdec::SPECDEC_ISA {
namespace {

constexpr int kVecs16 = 16 / kLanes;

// Sum over `n` (a power of two) values in a fixed tree: element i meets element i + n/2 first.
inline float tree_sum(float* a, int n) {
    for (int half = n / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a[i] += a[i + half];
    return a[0];
}

// Largest of the 16 lanes of v[0 .. kVecs16).
inline float max16(const vf* v) {
#if defined(SPECDEC_ISA_AVX512) || defined(SPECDEC_ISA_AVX512_VNNI)
    return _mm512_reduce_max_ps(v[0]);
#else
    float lanes[kLanes];
    vf top = v[0];
    for (int i = 1; i < kVecs16; ++i) top = vf_max(top, v[i]);
    vf_store(lanes, top);
    float highest = lanes[0];
    for (int i = 1; i < kLanes; ++i) highest = lanes[i] > highest ? lanes[i] : highest;
    return highest;
#endif
}

// e^x. Range reduction by log2(e) with ln 2 in two parts, then a polynomial of degree 6 (Cephes, expf); relative error
// under 2 ulp. Arguments are clamped to [-87.3, 88.0]: no zero, infinity or denormal comes out; NaN stays NaN.
inline vf vf_exp(vf x) {
    x = vf_max(vf_set(-87.3f), x);
    x = vf_min(vf_set(88.0f), x);  // the operand order lets NaN through
    const vi n = vf_to_int(vf_mul(x, vf_set(1.44269504f)));
    const vf nf = vf_from_int(n);
    vf r = vf_fnma(nf, vf_set(0.693359375f), x);
    r = vf_fnma(nf, vf_set(-2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(vf_mul(r, r), p, vf_add(r, vf_set(1.0f)));
    return vf_mul(p, vf_bits(vi_shl<23>(vi_add(n, vi_set(127)))));
}

// tanh(x) = (1 - t) / (1 + t) with t = e^(-2|x|), and the sign of x.
inline vf vf_tanh(vf x) {
    const vf one = vf_set(1.0f);
    const vf t = vf_exp(vf_mul(vf_abs(x), vf_set(-2.0f)));
    const vf magnitude = vf_div(vf_sub(one, t), vf_add(one, t));
    return vf_bits(vi_or(vi_bits(magnitude), vi_and(vi_bits(x), vi_set(INT32_MIN))));
}

}  // namespace
}  // namespace specdec::SPECDEC_ISA

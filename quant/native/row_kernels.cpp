#include "row_kernels.h"

#include "vector16.h"

namespace specdec::SPECDEC_ISA {
namespace {

constexpr int kAccumulators = 64;  // lanes of a sum, whatever the ISA

float sum_of_squares(const float* x, int64_t n) {
    constexpr int kVecs = kAccumulators / kLanes;
    vf acc[kVecs];
    for (int v = 0; v < kVecs; ++v) acc[v] = vf_zero();
    int64_t i = 0;
    for (; i + kAccumulators <= n; i += kAccumulators) {
        for (int v = 0; v < kVecs; ++v) {
            const vf a = vf_load(x + i + v * kLanes);
            acc[v] = vf_fma(a, a, acc[v]);
        }
    }
    float lanes[kAccumulators];
    for (int v = 0; v < kVecs; ++v) vf_store(lanes + v * kLanes, acc[v]);
    for (int lane = 0; i < n; ++i, ++lane) lanes[lane] = __builtin_fmaf(x[i], x[i], lanes[lane]);
    return tree_sum(lanes, kAccumulators);
}

void rms_norm(const float* x, const float* weight, float eps, float* out, int64_t n, int64_t group) {
    for (int64_t begin = 0; begin < n; begin += group) {
        const float mean = sum_of_squares(x + begin, group) / static_cast<float>(group);
        const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
        int64_t i = 0;
        for (; i + kLanes <= group; i += kLanes) {
            const vf scaled = vf_mul(vf_load(x + begin + i), vf_set(inverse));
            vf_store(out + begin + i, vf_mul(scaled, vf_load(weight + i)));
        }
        for (; i < group; ++i) out[begin + i] = x[begin + i] * inverse * weight[i];
    }
}

// Applies f, which maps vectors to a vector, to whole vectors and to the padded rest.
template <class F> inline void map1(const float* x, float* out, int64_t n, F f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) vf_store(out + i, f(vf_load(x + i)));
    if (i < n) {
        float rest[kLanes] = {};
        for (int64_t j = i; j < n; ++j) rest[j - i] = x[j];
        vf_store(rest, f(vf_load(rest)));
        for (int64_t j = i; j < n; ++j) out[j] = rest[j - i];
    }
}

template <class F> inline void map2(const float* a, const float* b, float* out, int64_t n, F f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) vf_store(out + i, f(vf_load(a + i), vf_load(b + i)));
    if (i < n) {
        float rest_a[kLanes] = {}, rest_b[kLanes] = {};
        for (int64_t j = i; j < n; ++j) rest_a[j - i] = a[j], rest_b[j - i] = b[j];
        vf_store(rest_a, f(vf_load(rest_a), vf_load(rest_b)));
        for (int64_t j = i; j < n; ++j) out[j] = rest_a[j - i];
    }
}

void add(const float* a, const float* b, float* out, int64_t n) {
    map2(a, b, out, n, [](vf x, vf y) { return vf_add(x, y); });
}

void scale(const float* x, float factor, float* out, int64_t n) {
    const vf f = vf_set(factor);
    map1(x, out, n, [f](vf v) { return vf_mul(v, f); });
}

void softcap(const float* x, float cap, float* out, int64_t n) {
    const vf c = vf_set(cap);
    map1(x, out, n, [c](vf v) { return vf_mul(c, vf_tanh(vf_div(v, c))); });
}

// silu(x) = x / (1 + e^-x). gelu_tanh(x) = 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
void gated(GateActivation activation, const float* gate, const float* up, float* out, int64_t n) {
    const vf one = vf_set(1.0f);
    if (activation == GateActivation::silu) {
        map2(gate, up, out, n, [one](vf g, vf u) {
            const vf e = vf_exp(vf_sub(vf_zero(), g));
            return vf_mul(vf_div(g, vf_add(one, e)), u);
        });
        return;
    }
    map2(gate, up, out, n, [one](vf g, vf u) {
        const vf cubic = vf_fma(vf_mul(vf_mul(g, g), vf_set(0.044715f)), g, g);
        const vf e = vf_exp(vf_mul(cubic, vf_set(-2.0f * 0.7978845608f)));
        return vf_mul(vf_div(g, vf_add(one, e)), u);
    });
}

void rope(const float* x, const float* cosine, const float* sine, float* out, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const vf a = vf_load(x + i), b = vf_load(x + half + i), c = vf_load(cosine + i), s = vf_load(sine + i);
        vf_store(out + i, vf_fnma(b, s, vf_mul(a, c)));
        vf_store(out + half + i, vf_fma(a, s, vf_mul(b, c)));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        out[i] = __builtin_fmaf(-b, sine[i], a * cosine[i]);
        out[half + i] = __builtin_fmaf(a, sine[i], b * cosine[i]);
    }
}

bool scan_blocks(const float* x, int64_t n, float* maxima) {
    vf poison = vf_zero();  // becomes NaN for good when an element is infinite or NaN
    int64_t block = 0;
    for (; (block + 1) * kScanBlock <= n; ++block) {
        const float* p = x + block * kScanBlock;
        vf highest = vf_load(p);
        poison = vf_fma(highest, vf_zero(), poison);
        for (int i = kLanes; i < kScanBlock; i += kLanes) {
            const vf v = vf_load(p + i);
            highest = vf_max(highest, v);
            poison = vf_fma(v, vf_zero(), poison);
        }
        float lanes[kLanes];
        vf_store(lanes, highest);
        float top = lanes[0];
        for (int i = 1; i < kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
        maxima[block] = top;
    }
    float lanes[kLanes], sum = 0.0f;
    vf_store(lanes, poison);
    for (int i = 0; i < kLanes; ++i) sum += lanes[i];
    if (block * kScanBlock < n) {
        float top = x[block * kScanBlock];
        for (int64_t i = block * kScanBlock; i < n; ++i) {
            top = x[i] > top ? x[i] : top;
            sum = __builtin_fmaf(x[i], 0.0f, sum);
        }
        maxima[block] = top;
    }
    return sum == 0.0f;
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {rms_norm, add, scale, softcap, gated, rope, scan_blocks};

}  // namespace specdec::SPECDEC_ISA

// Conversion to Q4_0, several blocks at a time: a lane is a block. Written in the compiler's own vectors.
#include "requantize.h"

#include <cstring>

namespace specdec::SPECDEC_ISA {
namespace {

#if defined(SPECDEC_ISA_AVX512) || defined(SPECDEC_ISA_AVX512_VNNI)
constexpr int kWidth = 16;
#elif defined(SPECDEC_ISA_AVX2) || defined(SPECDEC_ISA_AVX_VNNI)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
using Floats = float __attribute__((vector_size(4 * kWidth)));
using Ints = int32_t __attribute__((vector_size(4 * kWidth)));

constexpr int kLanes = 16;  // two superblocks

// Element i of the lanes' blocks is at [i].
struct alignas(64) Lanes {
    float value[kQ4_0Values][kLanes];
};

template <class T> T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

uint32_t to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// IEEE half to single, exactly.
float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | rest << 13);
    // The exponent is rebiased by a multiplication, which also normalizes subnormal numbers.
    return from_bits(sign | to_bits(from_bits(rest << 13) * from_bits(0x77800000u)));
}

// Single to half, to nearest, ties to even; what is too large becomes infinite.
uint16_t float_to_half(float value) {
    const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    // Subnormal: adding 0.5 rounds and leaves the result in the lowest bits.
    if (rest < 0x38800000u) return static_cast<uint16_t>(sign | (to_bits(from_bits(rest) + 0.5f) - 0x3f000000u));
    return static_cast<uint16_t>(sign | (rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u) >> 13);
}

float half_at(const uint8_t* p) { return half_to_float(load<uint16_t>(p)); }

// Decoders write the groups of 32 of a block to lanes `lane`, ...

// d * (quant + offset) + m for nibbles of 16 bytes, low ones first; `fifth` holds a fifth bit for each.
void decode_nibbles(const uint8_t* packed, uint32_t fifth, float d, int offset, float m, Lanes& out, int lane) {
    for (int i = 0; i < 16; i++) {
        const int low = (packed[i] & 15) | static_cast<int>(fifth >> i & 1u) << 4;
        const int high = packed[i] >> 4 | static_cast<int>(fifth >> (i + 16) & 1u) << 4;
        out.value[i][lane] = d * static_cast<float>(low + offset) + m;
        out.value[i + 16][lane] = d * static_cast<float>(high + offset) + m;
    }
}

// Q4_K and Q5_K; `fifth` is nullptr or 32 bytes with a bit for each group.
void decode_k(const uint8_t* b, const uint8_t* fifth, const uint8_t* packed, Lanes& out, int lane) {
    const uint8_t* s = b + 4;
    for (int g = 0; g < 8; g++) {
        const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        const int minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
        const float d = half_at(b) * static_cast<float>(scale), m = half_at(b + 2) * static_cast<float>(minimum);
        const uint8_t* q = packed + g / 2 * 32;
        for (int i = 0; i < 32; i++) {
            const int nibble = g % 2 ? q[i] >> 4 : q[i] & 15;
            const int value = nibble | (fifth ? fifth[i] >> g & 1 : 0) << 4;
            out.value[i][lane + g] = d * static_cast<float>(value) - m;
        }
    }
}

void decode_q6_k(const uint8_t* b, Lanes& out, int lane) {
    const float d = half_at(b + 208);
    for (int g = 0; g < 8; g++) {
        const int half = g / 4, part = g % 4;
        const uint8_t* low = b + 64 * half + 32 * (part % 2);
        const uint8_t* upper = b + 128 + 32 * half;
        const float scale[2] = {d * static_cast<float>(static_cast<int8_t>(b[192 + 2 * g])),
                                d * static_cast<float>(static_cast<int8_t>(b[193 + 2 * g]))};
        for (int i = 0; i < 32; i++) {
            const int nibble = part < 2 ? low[i] & 15 : low[i] >> 4;
            out.value[i][lane + g] = scale[i / 16] * static_cast<float>((nibble | (upper[i] >> 2 * part & 3) << 4) - 32);
        }
    }
}

void decode(SourceFormat format, const uint8_t* b, Lanes& out, int lane) {
    switch (format) {
        case SourceFormat::F32:
            for (int i = 0; i < 32; i++) out.value[i][lane] = load<float>(b + 4 * i);
            break;
        case SourceFormat::F16:
            for (int i = 0; i < 32; i++) out.value[i][lane] = half_at(b + 2 * i);
            break;
        case SourceFormat::BF16:
            for (int i = 0; i < 32; i++) out.value[i][lane] = from_bits(static_cast<uint32_t>(load<uint16_t>(b + 2 * i)) << 16);
            break;
        case SourceFormat::Q4_1: decode_nibbles(b + 4, 0, half_at(b), 0, half_at(b + 2), out, lane); break;
        case SourceFormat::Q5_0: decode_nibbles(b + 6, load<uint32_t>(b + 2), half_at(b), -16, 0.0f, out, lane); break;
        case SourceFormat::Q5_1: decode_nibbles(b + 8, load<uint32_t>(b + 4), half_at(b), 0, half_at(b + 2), out, lane); break;
        case SourceFormat::Q8_0: {
            const float d = half_at(b);
            for (int i = 0; i < 32; i++) out.value[i][lane] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
            break;
        }
        case SourceFormat::Q4_K: decode_k(b, nullptr, b + 16, out, lane); break;
        case SourceFormat::Q5_K: decode_k(b, b + 16, b + 48, out, lane); break;
        case SourceFormat::Q6_K: decode_q6_k(b, out, lane); break;
    }
}

// Macros, not functions: vectors that are passed by value would make the ABI depend on the ISA.
#define SPECDEC_ALL(x) (Floats{} + (x))
#define SPECDEC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define SPECDEC_MAX(a, b) ((a) > (b) ? (a) : (b))
// x * inverse to the nearest step from -8 to 7, ties to even. Adding 1.5 * 2^23 leaves no fraction.
#define SPECDEC_STEPS(steps, x, inverse)                                \
    Floats steps = ((x) * (inverse) + 12582912.0f) - 12582912.0f;       \
    steps = SPECDEC_MAX(SPECDEC_MIN(steps, SPECDEC_ALL(7.0f)), SPECDEC_ALL(-8.0f))

// Lanes from `first` on, `count` of them and at most kWidth, as Q4_0.
bool encode(const Lanes& lanes, int first, int count, uint8_t* out) {
    Floats x[kQ4_0Values];
    for (int i = 0; i < kQ4_0Values; i++) std::memcpy(&x[i], &lanes.value[i][first], sizeof(Floats));
    Floats top = x[0], bottom = x[0], poison = x[0] * 0.0f;
    for (int i = 1; i < kQ4_0Values; i++) {
        top = SPECDEC_MAX(top, x[i]);
        bottom = SPECDEC_MIN(bottom, x[i]);
        poison += x[i] * 0.0f;  // not a number where a value is not finite
    }
    const Floats extreme = top > -bottom ? top : bottom, magnitude = SPECDEC_MAX(top, -bottom);
    const Ints small = magnitude < 1e-30f;
    const Floats unit = small ? Floats{} : 1.0f / (small ? SPECDEC_ALL(1.0f) : extreme);
    Floats best_gain = SPECDEC_ALL(-1.0f), best_scale{}, best_inverse{};
    for (const float span : {-8.0f, -8.7f, 7.4f}) {
        const Floats inverse = unit * span;
        Floats fit{}, norm{};
        for (int i = 0; i < kQ4_0Values; i++) {
            SPECDEC_STEPS(steps, x[i], inverse);
            fit += x[i] * steps;
            norm += steps * steps;
        }
        const Floats scale = fit / SPECDEC_MAX(norm, SPECDEC_ALL(1.0f)), gain = fit * scale;
        const Ints better = gain > best_gain;
        best_gain = better ? gain : best_gain;
        best_scale = better ? scale : best_scale;
        best_inverse = better ? inverse : best_inverse;
    }
    uint8_t packed[16][kWidth];
    for (int i = 0; i < 16; i++) {
        SPECDEC_STEPS(low, x[i], best_inverse);
        SPECDEC_STEPS(high, x[i + 16], best_inverse);
        const Ints both = __builtin_convertvector(low + 8.0f, Ints) | __builtin_convertvector(high + 8.0f, Ints) << 4;
        for (int lane = 0; lane < kWidth; lane++) packed[i][lane] = static_cast<uint8_t>(both[lane]);
    }
    best_scale += poison;
    for (int lane = 0; lane < count; lane++, out += kQ4_0Bytes) {
        const uint16_t half = float_to_half(best_scale[lane]);
        if ((half & 0x7c00u) == 0x7c00u) return false;
        std::memcpy(out, &half, 2);
        for (int i = 0; i < 16; i++) out[2 + i] = packed[i][lane];
    }
    return true;
}

bool to_q4_0(const SourceInfo& source, const uint8_t* blocks, int64_t count, uint8_t* out) {
    Lanes lanes{};
    const int step = static_cast<int>(source.values / kQ4_0Values);
    for (int64_t i = 0; i < count;) {
        int lane = 0;
        for (; lane < kLanes && i < count; lane += step, i++) decode(source.format, blocks + i * source.bytes, lanes, lane);
        for (int first = 0; first < lane; first += kWidth) {
            const int width = lane - first < kWidth ? lane - first : kWidth;
            if (!encode(lanes, first, width, out)) return false;
            out += width * kQ4_0Bytes;
        }
    }
    return true;
}

}  // namespace

extern const RequantizeKernels kRequantizeKernels;
const RequantizeKernels kRequantizeKernels = {to_q4_0};

}  // namespace specdec::SPECDEC_ISA

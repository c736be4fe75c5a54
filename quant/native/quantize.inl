// Activations to int8: per block of 32, scale = max|x| / 127 and q = round to nearest even of x * (127 / max|x|).
// A block with a NaN or an infinity gets q = 0 and scale = NaN, so that its row comes out as NaN; one whose largest
// value is below kTiny counts as zero (127 / max|x| would overflow).

constexpr float kTiny = 1e-35f;

inline int32_t float_bits(float x) {
    int32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

// Largest |x| as bits: as integers, infinities and NaN compare above all numbers.
template <int N> inline int32_t max_abs_bits(const float* x) {
    vi largest = vi_zero();
    for (int i = 0; i < N; i += kLanes) largest = vi_max(largest, vi_and(vi_bits(vf_load(x + i)), vi_set(0x7fffffff)));
    return vi_reduce_max(largest);
}

// q = round(x * inverse) for N values.
template <int N> inline void round_all(const float* x, float inverse, int32_t* q) {
    for (int i = 0; i < N; i += kLanes) vi_store(q + i, vf_to_int(vf_mul(vf_load(x + i), vf_set(inverse))));
}

// scale * q is about x, with |q| <= limit.
struct Step {
    float scale, inverse;
};
template <int N> inline Step step_of(const float* x, float limit) {
    const int32_t bits = max_abs_bits<N>(x);
    if (bits >= 0x7f800000) return {__builtin_nanf(""), 0.0f};
    float largest;
    __builtin_memcpy(&largest, &bits, 4);
    if (largest < kTiny) return {0.0f, 0.0f};
    return {largest / limit, limit / largest};
}

inline void quantize_block(const float* x, ActBlock& a, int b, float* sums16) {
    const Step step = step_of<kBlock>(x, 127.0f);
    a.scale[b] = step.scale;
    int32_t total[2] = {0, 0};
    for (int half = 0; half < 2; half++) {
        vi sum = vi_zero();
        for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
            // a zero inverse also hides NaN and infinities, which have no integer
            const vi q = step.inverse == 0.0f ? vi_zero() : vf_to_int(vf_mul(vf_load(x + i), vf_set(step.inverse)));
            vi_store_s8(a.q + kBlock * b + i, q);
            sum = vi_add(sum, q);
        }
        total[half] = vi_reduce_add(sum);
        a.minus32[2 * b + half] = -32 * total[half];
        sums16[2 * b + half] = step.scale * static_cast<float>(total[half]);
    }
    const int32_t sum = total[0] + total[1];
    a.sum[b] = step.scale * static_cast<float>(sum);
    a.minus8[b] = -8 * sum;
    a.minus16[b] = -16 * sum;
    a.minus128[b] = -128 * sum;
}

// The block sums with 16 bits, for the types whose minima are integers.
inline void quantize_sums(ActBlock& a, const float* sums16) {
    int32_t q[16];
    float sums32[16] = {};
    for (int b = 0; b < 8; b++) sums32[b] = a.sum[b];
    const Step step32 = step_of<16>(sums32, 32767.0f);
    a.sum32_scale = step32.scale;
    round_all<16>(sums32, step32.inverse, q);
    for (int b = 0; b < 8; b++) a.sum32_q[b] = static_cast<int16_t>(q[b]);
    const Step step16 = step_of<16>(sums16, 32767.0f);
    a.sum16_scale = step16.scale;
    round_all<16>(sums16, step16.inverse, q);
    constexpr int kOrder[4] = {0, 2, 1, 3};
    for (int i = 0; i < 16; i++) a.sum16_q[i] = static_cast<int16_t>(q[i / 4 * 4 + kOrder[i % 4]]);
}

// The same as quantize_block for all eight blocks and quantize_sums, for finite blocks of which none counts as zero;
// `largest_bits` are those of the blocks' largest |x|.
inline void quantize_plain(const float* x, ActBlock& a, const int32_t* largest_bits) {
    alignas(64) float scale[16], inverse[16], sums16[16];
    alignas(64) int32_t total[16];
    for (int i = 0; i < 16; i += kLanes) {
        const vf largest = vf_bits(vi_load(largest_bits + i)), limit = vf_set(127.0f);
        vf_store(scale + i, vf_div(largest, limit));
        vf_store(inverse + i, vf_div(limit, largest));
    }
    for (int b = 0; b < 8; b++) {
        const vf factor = vf_set(inverse[b]);
        for (int half = 0; half < 2; half++) {
            vi sum = vi_zero();
            for (int i = kBlock * b + 16 * half; i < kBlock * b + 16 * half + 16; i += kLanes) {
                const vi q = vf_to_int(vf_mul(vf_load(x + i), factor));
                vi_store_s8(a.q + i, q);
                sum = vi_add(sum, q);
            }
            total[2 * b + half] = vi_reduce_add(sum);
        }
    }
    for (int i = 0; i < 16; i++) {
        a.minus32[i] = -32 * total[i];
        sums16[i] = scale[i / 2] * static_cast<float>(total[i]);
    }
    for (int b = 0; b < 8; b++) {
        const int32_t sum = total[2 * b] + total[2 * b + 1];
        a.scale[b] = scale[b];
        a.sum[b] = scale[b] * static_cast<float>(sum);
        a.minus8[b] = -8 * sum;
        a.minus16[b] = -16 * sum;
        a.minus128[b] = -128 * sum;
    }
    quantize_sums(a, sums16);
}

inline void quantize_superblock(const float* x, ActBlock& a) {
    // Unused lanes hold 1.0: their quotients are harmless.
    alignas(64) int32_t largest_bits[16];
    bool plain = true;
    for (int b = 0; b < 8; b++) {
        largest_bits[b] = max_abs_bits<kBlock>(x + kBlock * b);
        largest_bits[b + 8] = 0x3f800000;
        plain = plain && largest_bits[b] >= float_bits(kTiny) && largest_bits[b] < 0x7f800000;
    }
    if (plain) return quantize_plain(x, a, largest_bits);
    float sums16[16];
    for (int b = 0; b < 8; b++) quantize_block(x + kBlock * b, a, b, sums16);
    quantize_sums(a, sums16);
}

// Elements [k_begin, k_end) of one row; both multiples of kSuperBlock, k_end also a.k.
void quantize_range(const Activations& a, int64_t m, int64_t k_begin, int64_t k_end) {
    ActBlock* blocks = static_cast<ActBlock*>(a.workspace);
    const float* row = a.x + static_cast<size_t>(m) * a.ldx;
    for (int64_t k = k_begin; k < k_end; k += kSuperBlock) {
        float padded[kSuperBlock];
        const float* x = row + k;
        if (a.k - k < kSuperBlock) {
            for (int i = 0; i < kSuperBlock; i++) padded[i] = i < a.k - k ? x[i] : 0.0f;
            x = padded;
        }
        quantize_superblock(x, blocks[k / kSuperBlock * a.m + m]);
    }
}

void quantize(const Activations& a, int64_t m_begin, int64_t m_end) {
    for (int64_t m = m_begin; m < m_end; m++) quantize_range(a, m, 0, a.k);
}

// How each block format unpacks. A format has
//   kPairs                 pairs of 32-blocks per unit
//   kMax                   largest weight byte (255: signed bytes, through signed_weights)
//   kOffset                what was added to the true weights to make the bytes unsigned
//   kSub16                 scales per 16 instead of 32
//   kBlockMin, kSuperMin   minima: a float per block; integers per superblock over sums of 32 or of 16
//   Head / head()          what a unit shares, from its half line (layout.h) and the unit
//   index(pair, b)         which 32-block of the unit block b (0 or 1) of a pair is
//   block<P, B>()          8 weight quads w of 32 elements, scale(s) s, and with kBlockMin the minimum
//   mins()                 pairs of 16-bit minima, in the order of ActBlock::sum32_q or sum16_q
// `lane` is the first of the panel's 16 rows that the vectors hold.

// Dword i of a unit's dwords that start at byte `offset`.
inline vi dword(const uint8_t* unit, int offset, int i, int lane) { return vi_load(unit + offset + 64 * i + 4 * lane); }
inline vf halves(const uint8_t* unit, int offset, int lane) { return vf_load_f16(unit + offset + 2 * lane); }

// Shift left for positive N, right (logical) for negative.
template <int N> inline vi vi_shift(vi a) {
    if constexpr (N > 0) return vi_shl<N>(a);
    if constexpr (N < 0) return vi_shr<-N>(a);
    return a;
}
template <int B> inline vi nibble(vi bytes) { return vi_and(vi_shift<-4 * B>(bytes), vi_set(0x0f0f0f0f)); }
// Byte B of each lane, unsigned and signed.
template <int B> inline vi byte_u(vi a) { return vi_and(vi_shr<8 * B>(a), vi_set(0xff)); }
template <int B> inline vi byte_s(vi a) { return vi_sar<24>(vi_shift<24 - 8 * B>(a)); }

alignas(16) constexpr int8_t kIq4Offset[16] = {1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15};
alignas(16) constexpr int8_t kNf4Offset[16] = {16, 50, 69, 84, 96, 107, 118, -128, -119, -110, -100, -90, -79, -65, -47, -16};

// Signed weights from a table or from bytes, in the form that this ISA's dot product takes.
inline vi table_weights(const int8_t* values, const int8_t* values_plus_128, vi index) {
    return vi_lookup(kSignedDot ? values : values_plus_128, index);
}
inline vi signed_weights(vi bytes) { return kSignedDot ? bytes : vi_xor(bytes, vi_set(static_cast<int32_t>(0x80808080u))); }

struct NoHead {};

// Blocks of 32 with an f16 scale, two per unit of 64.
struct Unit64 {
    static constexpr int kPairs = 1, kOffset = 0, kSuperMin = 0;
    static constexpr bool kSub16 = false, kBlockMin = false;
    using Head = NoHead;
    static Head head(const uint8_t*, const uint8_t*, int) { return {}; }
    static constexpr int index(int, int b) { return b; }
    // Elements 0..15 of a block in the low nibbles of 4 dwords, 16..31 in the high ones.
    template <int B> static void split_nibbles(const uint8_t* unit, int offset, int lane, vi* w) {
        for (int i = 0; i < 4; i++) {
            const vi x = dword(unit, offset, 4 * B + i, lane);
            w[i] = nibble<0>(x);
            w[4 + i] = nibble<1>(x);
        }
    }
    // Adds bit 4 from a dword of fifth bits.
    static void fifth_bits(vi bits, vi* w) {
        const vi mask = vi_set(0x10101010);
        w[0] = vi_and_or(vi_shl<4>(bits), mask, w[0]);
        w[1] = vi_and_or(vi_shl<3>(bits), mask, w[1]);
        w[2] = vi_and_or(vi_shl<2>(bits), mask, w[2]);
        w[3] = vi_and_or(vi_shl<1>(bits), mask, w[3]);
        w[4] = vi_and_or(bits, mask, w[4]);
        w[5] = vi_and_or(vi_shr<1>(bits), mask, w[5]);
        w[6] = vi_and_or(vi_shr<2>(bits), mask, w[6]);
        w[7] = vi_and_or(vi_shr<3>(bits), mask, w[7]);
    }
};

struct Q4_0 : Unit64 {
    static constexpr WeightType kType = WeightType::Q4_0;
    static constexpr int kMax = 15, kOffset = 8;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        split_nibbles<B>(unit, 64, lane, w);
        s[0] = halves(unit, 32 * B, lane);
    }
};

struct Q4_1 : Unit64 {
    static constexpr WeightType kType = WeightType::Q4_1;
    static constexpr int kMax = 15;
    static constexpr bool kBlockMin = true;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf* minimum) {
        split_nibbles<B>(unit, 128, lane, w);
        s[0] = halves(unit, 32 * B, lane);
        *minimum = halves(unit, 64 + 32 * B, lane);
    }
};

struct Q5_0 : Unit64 {
    static constexpr WeightType kType = WeightType::Q5_0;
    static constexpr int kMax = 31, kOffset = 16;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        split_nibbles<B>(unit, 192, lane, w);
        fifth_bits(dword(unit, 64, B, lane), w);
        s[0] = halves(unit, 32 * B, lane);
    }
};

struct Q5_1 : Unit64 {
    static constexpr WeightType kType = WeightType::Q5_1;
    static constexpr int kMax = 31;
    static constexpr bool kBlockMin = true;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf* minimum) {
        split_nibbles<B>(unit, 256, lane, w);
        fifth_bits(dword(unit, 128, B, lane), w);
        s[0] = halves(unit, 32 * B, lane);
        *minimum = halves(unit, 64 + 32 * B, lane);
    }
};

struct Q8_0 : Unit64 {
    static constexpr WeightType kType = WeightType::Q8_0;
    static constexpr int kMax = 255, kOffset = 128;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        for (int i = 0; i < 8; i++) w[i] = signed_weights(dword(unit, 64, 8 * B + i, lane));
        s[0] = halves(unit, 32 * B, lane);
    }
};

struct IQ4_NL : Unit64 {
    static constexpr WeightType kType = WeightType::IQ4_NL;
    static constexpr int kMax = 255, kOffset = 128;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        split_nibbles<B>(unit, 64, lane, w);
        for (int i = 0; i < 8; i++) w[i] = table_weights(kIq4Values, kIq4Offset, w[i]);
        s[0] = halves(unit, 32 * B, lane);
    }
};

struct NF4 : Unit64 {
    static constexpr WeightType kType = WeightType::NF4;
    static constexpr int kMax = 255, kOffset = 128;
    template <int P, int B> static void block(Head, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        for (int i = 0; i < 8; i++)
            w[i] = table_weights(kNf4Values, kNf4Offset, nibble<B>(dword(unit, 64, i, lane)));
        s[0] = vf_mul(vf_load(reinterpret_cast<const float*>(unit) + lane), vf_set(1.0f / kNf4Scale));
    }
};

// Superblocks of 256.
struct Unit256 {
    static constexpr int kPairs = 4, kOffset = 0, kSuperMin = 0;
    static constexpr bool kSub16 = false, kBlockMin = false;
    static constexpr int index(int pair, int b) { return 2 * pair + b; }
    // The 16-bit pair P of 6-bit numbers (see pack_k_scales): low nibbles from `low`, upper bits from bit Base of `high`.
    template <int P, int Base> static vi six_bits(vi low, vi high) {
        const vi nibbles = vi_and(vi_shift<-4 * P>(low), vi_set(0x000f000f));
        return vi_and_or(vi_shift<4 - Base - 2 * P>(high), vi_set(0x00300030), nibbles);
    }
    template <int B> static vi half(vi pair) {
        if constexpr (B == 0) return vi_and(pair, vi_set(0xffff));
        return vi_shr<16>(pair);
    }
};

struct KHead {
    vf d, dmin;
    vi scales, mins, upper;
};
struct Q4_K : Unit256 {
    static constexpr WeightType kType = WeightType::Q4_K;
    static constexpr int kMax = 15, kSuperMin = 32;
    using Head = KHead;
    static Head head(const uint8_t*, const uint8_t* unit, int lane) {
        return {halves(unit, 0, lane), halves(unit, 32, lane), dword(unit, 64, 0, lane), dword(unit, 64, 1, lane),
                dword(unit, 64, 2, lane)};
    }
    template <int P, int B> static void scale(const Head& h, vf* s) {
        s[0] = vf_mul(h.d, vf_from_int(half<B>(six_bits<P, 0>(h.scales, h.upper))));
    }
    template <int P, int B> static void block(const Head& h, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        for (int i = 0; i < 8; i++) w[i] = nibble<B>(dword(unit, 256, 8 * P + i, lane));
        scale<P, B>(h, s);
    }
    static void mins(const Head& h, const uint8_t*, int, vi* m) {
        m[0] = six_bits<0, 8>(h.mins, h.upper);
        m[1] = six_bits<1, 8>(h.mins, h.upper);
        m[2] = six_bits<2, 8>(h.mins, h.upper);
        m[3] = six_bits<3, 8>(h.mins, h.upper);
    }
};

struct Q5_K : Q4_K {
    static constexpr WeightType kType = WeightType::Q5_K;
    static constexpr int kMax = 31;
    template <int P, int B> static void block(const Head& h, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        for (int i = 0; i < 8; i++) {
            const vi fifth = vi_shift<4 - index(P, B)>(dword(unit, 256, 2 * i, lane));
            const vi low = nibble<B>(dword(unit, 256, P == 0 ? 2 * i + 1 : 8 + 8 * P + i, lane));
            w[i] = vi_and_or(fifth, vi_set(0x10101010), low);
        }
        scale<P, B>(h, s);
    }
};

struct Q2_K : Unit256 {
    static constexpr WeightType kType = WeightType::Q2_K;
    static constexpr int kMax = 3, kSuperMin = 16;
    static constexpr bool kSub16 = true;
    struct Head {
        vf d, dmin;
    };
    static Head head(const uint8_t*, const uint8_t* unit, int lane) { return {halves(unit, 0, lane), halves(unit, 32, lane)}; }
    template <int P, int B> static void block(const Head& h, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        constexpr int b = index(P, B);
        for (int i = 0; i < 8; i++)
            w[i] = vi_and(vi_shift<-2 * (b % 4)>(dword(unit, 320, 8 * (b / 4) + i, lane)), vi_set(0x03030303));
        const vi scales = vi_and(dword(unit, 64, b / 2, lane), vi_set(0x0f0f0f0f));
        s[0] = vf_mul(h.d, vf_from_int(byte_u<2 * (b % 2)>(scales)));
        s[1] = vf_mul(h.d, vf_from_int(byte_u<2 * (b % 2) + 1>(scales)));
    }
    static void mins(const Head&, const uint8_t* unit, int lane, vi* m) {
        const vi mask = vi_set(0x000f000f);
        for (int i = 0; i < 4; i++) {
            const vi scales = dword(unit, 64, i, lane);
            m[2 * i] = vi_and(vi_shr<4>(scales), mask);
            m[2 * i + 1] = vi_and(vi_shr<12>(scales), mask);
        }
    }
};

struct Q3_K : Unit256 {
    static constexpr WeightType kType = WeightType::Q3_K;
    static constexpr int kMax = 7, kOffset = 4;
    static constexpr bool kSub16 = true;
    struct Head {
        vf d;
        vi low, high, upper;
    };
    static Head head(const uint8_t* line, const uint8_t* unit, int lane) {
        return {halves(line, 0, lane), dword(unit, 0, 0, lane), dword(unit, 0, 1, lane), dword(unit, 0, 2, lane)};
    }
    template <int P, int B> static void block(const Head& h, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        constexpr int b = index(P, B);
        for (int i = 0; i < 8; i++) {
            const vi quants = dword(unit, 192, b < 4 ? 2 * i + 1 : 16 + i, lane);
            const vi low = vi_and(vi_shift<-2 * (b % 4)>(quants), vi_set(0x03030303));
            w[i] = vi_and_or(vi_shift<2 - b>(dword(unit, 192, 2 * i, lane)), vi_set(0x04040404), low);
        }
        const vi scales = b < 4 ? six_bits<b % 4, 0>(h.low, h.upper) : six_bits<b % 4, 8>(h.high, h.upper);
        s[0] = vf_mul(h.d, vf_from_int(vi_sub(half<0>(scales), vi_set(32))));
        s[1] = vf_mul(h.d, vf_from_int(vi_sub(half<1>(scales), vi_set(32))));
    }
};

struct Q6_K : Unit256 {
    static constexpr WeightType kType = WeightType::Q6_K;
    static constexpr int kMax = 63, kOffset = 32;
    static constexpr bool kSub16 = true;
    struct Head {
        vf d;
    };
    static Head head(const uint8_t* line, const uint8_t*, int lane) { return {halves(line, 0, lane)}; }
    // Low and high nibbles of a byte are 64 elements apart.
    static constexpr int index(int pair, int b) { return 4 * (pair / 2) + pair % 2 + 2 * b; }
    template <int P, int B> static void block(const Head& h, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        constexpr int b = index(P, B);
        for (int i = 0; i < 8; i++) {
            constexpr int half = 24 * (P / 2);
            const vi upper = vi_shift<4 - 2 * (b % 4)>(dword(unit, 256, half + 2 * i + 1, lane));
            const vi low = nibble<B>(dword(unit, 256, half + (P % 2 == 0 ? 2 * i : 16 + i), lane));
            w[i] = vi_and_or(upper, vi_set(0x30303030), low);
        }
        const vi scales = dword(unit, 0, b / 2, lane);
        s[0] = vf_mul(h.d, vf_from_int(byte_s<2 * (b % 2)>(scales)));
        s[1] = vf_mul(h.d, vf_from_int(byte_s<2 * (b % 2) + 1>(scales)));
    }
};

struct IQ4_XS : Unit256 {
    static constexpr WeightType kType = WeightType::IQ4_XS;
    static constexpr int kMax = 255, kOffset = 128;
    struct Head {
        vf d;
        vi low, high;
    };
    static Head head(const uint8_t*, const uint8_t* unit, int lane) {
        return {halves(unit, 0, lane), dword(unit, 64, 0, lane), vi_load_u16(unit + 32 + 2 * lane)};
    }
    template <int P, int B> static void block(const Head& h, const uint8_t* unit, int lane, vi* w, vf* s, vf*) {
        constexpr int b = index(P, B);
        for (int i = 0; i < 4; i++) {
            const vi x = dword(unit, 128, 4 * b + i, lane);
            w[i] = table_weights(kIq4Values, kIq4Offset, nibble<0>(x));
            w[4 + i] = table_weights(kIq4Values, kIq4Offset, nibble<1>(x));
        }
        const vi low = vi_and(vi_shift<-4 * b>(h.low), vi_set(0xf));
        const vi bits = vi_and_or(vi_shift<4 - 2 * b>(h.high), vi_set(0x30), low);
        s[0] = vf_mul(h.d, vf_from_int(vi_sub(bits, vi_set(32))));
    }
};

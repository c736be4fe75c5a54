// Block formats: for every unit of K the weights of 16 rows are unpacked once into registers and multiplied with all rows
// of a tile of activations, whose float accumulators stay in the L1 cache. Per output element the operations and their order
// are the same whatever the tile: superblock by superblock, first the integer minima, then block by block
//     sum = fma(float(integer dot), weight scale * activation scale, sum)

constexpr int64_t kTile = 32;                           // rows of x per pass: their superblock and sums fit L1
constexpr int kBlocksAtOnce = kLanes == 8 ? 1 : 2;      // 8 vectors of weights each; AVX2 has 16 registers
// How far ahead the weight stream is requested. Into the second-level cache: requests from the first one occupy its few
// line buffers until the memory answers, and spread over the rows of a tile, for the same reason.
constexpr int64_t kPrefetchBytes = 4096;

template <class T> constexpr PackedLayout kLayoutOf = kLayouts[static_cast<size_t>(T::kType)];

template <class T> inline vi offset_sum(const ActBlock& a, int block) {
    if constexpr (T::kOffset == 8) return vi_set(a.minus8[block]);
    if constexpr (T::kOffset == 16) return vi_set(a.minus16[block]);
    if constexpr (T::kOffset == 128 && !kSignedDot) return vi_set(a.minus128[block]);
    return vi_zero();
}
template <class T> inline vi offset_sum16(const ActBlock& a, int sub) {
    if constexpr (T::kOffset == 32) return vi_set(a.minus32[sub]);
    if constexpr (T::kOffset == 4) return vi_sar<3>(vi_set(a.minus32[sub]));
    return vi_zero();
}

template <class T, int Groups> inline vi dot(vi start, const vi* w, const int8_t* x) {
    if constexpr (T::kMax == 255 && kSignedDot) return vi_dot_signed<Groups>(start, w, x);
    else return vi_dot<Groups, T::kMax>(start, w, x);
}

// sum + W block times activation block.
template <class T>
inline vf add_block(const ActBlock& a, int block, const vi* w, const vf* s, vf minimum, vf sum) {
    const int8_t* x = a.q + kBlock * block;
    const vf scale = vf_set(a.scale[block]);
    if constexpr (T::kSub16) {
        const vi first = dot<T, 4>(offset_sum16<T>(a, 2 * block), w, x);
        const vi second = dot<T, 4>(offset_sum16<T>(a, 2 * block + 1), w + 4, x + 16);
        const vf both = vf_fma(vf_from_int(second), s[1], vf_mul(vf_from_int(first), s[0]));
        return vf_fma(both, scale, sum);
    } else {
        sum = vf_fma(vf_from_int(dot<T, 8>(offset_sum<T>(a, block), w, x)), vf_mul(s[0], scale), sum);
        if constexpr (T::kBlockMin) sum = vf_fma(minimum, vf_set(a.sum[block]), sum);
        return sum;
    }
}

// Blocks First .. First + Count - 1 of pair P of a unit, for m rows. `base` is the unit's first block in its superblock.
// With each row, `num_ahead` lines of the weight stream are requested.
template <class T, int P, int First, int Count>
inline void multiply(const typename T::Head& head, const uint8_t* unit, int lane, const ActBlock* a, int base, int64_t m, float* sums,
                     int64_t num_ahead) {
    constexpr int64_t kPairBytes = kLayoutOf<T>.unit_bytes / T::kPairs;
    const uint8_t* ahead = unit + kPrefetchBytes + P * kPairBytes;
    vi w[8 * Count];
    vf s[2 * Count], minimum[Count];
    for (int b = 0; b < Count; b++) minimum[b] = vf_zero();
    if constexpr (First == 0) T::template block<P, 0>(head, unit, lane, w, s, minimum);
    if constexpr (First + Count == 2)
        T::template block<P, 1>(head, unit, lane, w + 8 * (Count - 1), s + 2 * (Count - 1), minimum + Count - 1);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < num_ahead; j++, ahead += 64) prefetch(ahead);
        vf sum = vf_load(sums + i * kLanes);
        for (int b = 0; b < Count; b++)
            sum = add_block<T>(a[i], base + T::index(P, First + b), w + 8 * b, s + 2 * b, minimum[b], sum);
        vf_store(sums + i * kLanes, sum);
    }
}

template <class T, int P>
inline void multiply_pairs(const typename T::Head& head, const uint8_t* unit, int lane, const ActBlock* a, int base, int64_t m, float* sums) {
    constexpr int64_t kPairLines = (kLayoutOf<T>.unit_bytes / T::kPairs + 63) / 64;
    const int64_t num_ahead = lane == 0 ? (kPairLines + m - 1) / m : 0;
    if constexpr (kBlocksAtOnce == 2) {
        multiply<T, P, 0, 2>(head, unit, lane, a, base, m, sums, num_ahead);
    } else {
        multiply<T, P, 0, 1>(head, unit, lane, a, base, m, sums, num_ahead);
        multiply<T, P, 1, 1>(head, unit, lane, a, base, m, sums, 0);
    }
    if constexpr (P + 1 < T::kPairs) multiply_pairs<T, P + 1>(head, unit, lane, a, base, m, sums);
}

// sums -= dmin * (integer minima . block sums) for a superblock.
template <class T>
inline void subtract_mins(const typename T::Head& head, const uint8_t* unit, int lane, const ActBlock* a, int64_t m, float* sums) {
    constexpr int kWords = T::kSuperMin == 32 ? 4 : 8;
    vi mins[kWords];
    T::mins(head, unit, lane, mins);
    for (int64_t i = 0; i < m; i++) {
        const int16_t* q = T::kSuperMin == 32 ? a[i].sum32_q : a[i].sum16_q;
        vi total = vi_zero();
        for (int j = 0; j < kWords; j++) {
            int32_t pair;
            __builtin_memcpy(&pair, q + 2 * j, 4);
            total = vi_add(total, vi_madd16(mins[j], vi_set(pair)));
        }
        const vf scale = vf_mul(head.dmin, vf_set(T::kSuperMin == 32 ? a[i].sum32_scale : a[i].sum16_scale));
        vf_store(sums + i * kLanes, vf_fnma(vf_from_int(total), scale, vf_load(sums + i * kLanes)));
    }
}

// One panel times m <= kTile rows of activations; `a` points at the tile's first row, superblocks are `stride` apart.
template <class T>
void panel_tile(const uint8_t* panel, int64_t k, const ActBlock* a, int64_t stride, int64_t m, float* y, size_t ldy, int64_t lanes,
                const float* bias) {
    constexpr PackedLayout kLayout = kLayoutOf<T>;
    constexpr int64_t kUnitsPerSuper = kSuperBlock / kLayout.unit;
    const int64_t units = num_units(kLayout, k);
    for (int lane = 0; lane < lanes; lane += kLanes) {
        alignas(64) float sums[kTile * kLanes] = {};
        for (int64_t u = 0; u < units; u++) {
            const uint8_t* unit = panel + unit_offset(kLayout, u);
            const ActBlock* blocks = a + u / kUnitsPerSuper * stride;
            const int base = static_cast<int>(u % kUnitsPerSuper) * (kLayout.unit / kBlock);
            const auto head = T::head(panel + line_offset(kLayout, u), unit, lane);
            if constexpr (T::kSuperMin != 0) subtract_mins<T>(head, unit, lane, blocks, m, sums);
            multiply_pairs<T, 0>(head, unit, lane, blocks, base, m, sums);
        }
        for (int64_t i = 0; i < m; i++)
            store_lanes(y + static_cast<size_t>(i) * ldy + lane, vf_load(sums + i * kLanes), lanes - lane, bias ? bias + lane : nullptr);
    }
}

template <class T>
void matmul_blocks(const PackedMatrix& w, const Activations& a, float* y, size_t ldy, int64_t n_begin, int64_t n_end,
                   const float* bias) {
    const auto bytes = static_cast<size_t>(panel_bytes(w.type, w.k));
    const ActBlock* blocks = static_cast<const ActBlock*>(a.workspace);
    for (int64_t m = 0; m < a.m; m += kTile) {
        const int64_t rows = a.m - m < kTile ? a.m - m : kTile;
        for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
            const int64_t lanes = n_end - n < kPanelRows ? n_end - n : kPanelRows;
            const uint8_t* panel = w.data + static_cast<size_t>(n / kPanelRows) * bytes;
            panel_tile<T>(panel, w.k, blocks + m, a.m, rows, y + static_cast<size_t>(m) * ldy + n, ldy, lanes, bias ? bias + n : nullptr);
        }
    }
}

// Weight byte `i` of a lane as a signed number.
template <class T> inline int32_t true_weight(const vi* w, int i, int lane) {
    uint8_t bytes[4 * kLanes];
    vi_store(bytes, w[i / 4]);
    const uint8_t byte = bytes[4 * lane + i % 4];
    if (T::kMax == 255 && kSignedDot) return static_cast<int8_t>(byte);
    return byte - T::kOffset;
}
inline float lane_of(vf v, int lane) {
    float values[kLanes];
    vf_store(values, v);
    return values[lane];
}
inline int32_t half_of(vi v, int lane, int half) {
    int16_t halves[2 * kLanes];
    vi_store(halves, v);
    return halves[2 * lane + half];
}

// The 32 elements of block `B` of pair P: scale * weight, then the minimum, as the formats define them.
template <class T, int P, int B>
void dequantize_block(const typename T::Head& head, const uint8_t* unit, int first, int lane, int64_t room, float* out) {
    constexpr int block = T::index(P, B);
    out += kBlock * block;
    if (room <= kBlock * block) return;
    vi w[8];
    vf s[2], minimum = vf_zero();
    T::template block<P, B>(head, unit, first, w, s, &minimum);
    for (int i = 0; i < kBlock; i++) {
        float value = lane_of(s[T::kSub16 ? i / 16 : 0], lane) * static_cast<float>(true_weight<T>(w, i, lane));
        if constexpr (T::kBlockMin) value = value + lane_of(minimum, lane);
        if constexpr (T::kSuperMin != 0) {
            vi mins[8];
            T::mins(head, unit, first, mins);
            constexpr bool k32 = T::kSuperMin == 32;
            const int sub = 2 * block + i / 16;
            const int32_t m = k32 ? half_of(mins[block / 2], lane, block % 2) : half_of(mins[sub / 4 * 2 + sub % 2], lane, sub % 4 / 2);
            value = value - lane_of(head.dmin, lane) * static_cast<float>(m);
        }
        out[i] = value;
    }
}

template <class T, int P>
void dequantize_unit(const typename T::Head& head, const uint8_t* unit, int first, int lane, int64_t room, float* out) {
    dequantize_block<T, P, 0>(head, unit, first, lane, room, out);
    dequantize_block<T, P, 1>(head, unit, first, lane, room, out);
    if constexpr (P + 1 < T::kPairs) dequantize_unit<T, P + 1>(head, unit, first, lane, room, out);
}

template <class T> void dequantize_blocks(const PackedMatrix& w, int64_t row, float* out) {
    constexpr PackedLayout kLayout = kLayoutOf<T>;
    const uint8_t* panel = w.data + row / kPanelRows * panel_bytes(w.type, w.k);
    const int first = static_cast<int>(row % kPanelRows) / kLanes * kLanes, lane = static_cast<int>(row % kPanelRows) % kLanes;
    for (int64_t u = 0; u < num_units(kLayout, w.k); u++) {
        const uint8_t* unit = panel + unit_offset(kLayout, u);
        const auto head = T::head(panel + line_offset(kLayout, u), unit, first);
        dequantize_unit<T, 0>(head, unit, first, lane, w.k - u * kLayout.unit, out + u * kLayout.unit);
    }
}

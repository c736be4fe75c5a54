#include "attention.h"

#include "vector16.h"

namespace specdec::SPECDEC_ISA {
namespace {

// Register tile: queries x lanes. Which tile computes an element does not change it: every element is one chain of
// fma over the summation index.
#if defined(SPECDEC_ISA_SCALAR)
constexpr int kTile = 2;
#else
constexpr int kTile = 6;  // 24 accumulators of 32 registers, or 12 of 16; 7 was slower on AVX-512
#endif
static_assert(kTile <= kMaxTile);
constexpr int kTileLanes = kLanes == 16 ? 64 : 16;

struct LoadF32 {
    using Element = float;
    static vf load(const float* p) { return vf_load(p); }
};
struct LoadF16 {
    using Element = uint16_t;
    static vf load(const uint16_t* p) { return vf_load_f16(p); }
};

// Fetches the rows of the next chunk while those of the present one are worked on: they come from memory, and the
// hardware does not look across pages. One fetch per row of `bytes`, the whole row.
struct Fetch {
    const uint8_t* base = nullptr;
    int64_t row_bytes = 0;
    void row(int64_t i) const {
        for (int64_t line = 0; line < row_bytes; line += 64) __builtin_prefetch(base + i * row_bytes + line, 0, 2);
    }
};
struct NoFetch {
    void row(int64_t) const {}
};

// sink(q, v, sum over i in [begin, end) of a[q][i] * b[i * stride + v * kLanes ...]) for NQ queries and NV vectors.
template <int NQ, int NV, class Load, class Fetching, class Sink>
inline __attribute__((always_inline)) void product(const float* const* a, const typename Load::Element* b,
                                                   int64_t stride, int64_t begin, int64_t end, const Fetching& fetch,
                                                   const Sink& sink) {
    vf acc[NQ][NV];
#pragma GCC unroll 8
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[q][v] = vf_zero();
    for (int64_t i = begin; i < end; ++i) {
        fetch.row(i);
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) {
            const vf bv = Load::load(b + i * stride + v * kLanes);
#pragma GCC unroll 8
            for (int q = 0; q < NQ; ++q) acc[q][v] = vf_fma(vf_set(a[q][i]), bv, acc[q][v]);
        }
    }
#pragma GCC unroll 8
    for (int q = 0; q < NQ; ++q)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) sink(q, v, acc[q][v]);
}

// kMask + 64 - lo + i is set where lane i >= lo; ~kMask at 63 - hi + i is set where i <= hi.
struct MaskTable {
    int32_t at_least[2 * kChunk], at_most[2 * kChunk];
    constexpr MaskTable() : at_least(), at_most() {
        for (int i = 0; i < 2 * kChunk; ++i) {
            at_least[i] = i >= kChunk ? -1 : 0;
            at_most[i] = i < kChunk ? -1 : 0;
        }
    }
};
constexpr MaskTable kMasks;

inline vi lane_mask(int64_t lane, int64_t lo, int64_t hi) {
    return vi_and(vi_load(kMasks.at_least + kChunk - lo + lane), vi_load(kMasks.at_most + kChunk - 1 - hi + lane));
}

// What the queries of one tile see of one chunk.
struct TileRange {
    int64_t lo[kMaxTile], hi[kMaxTile];  // visible slots of each query, lo > hi where there are none
    int64_t tile_lo, tile_hi;            // their union
    bool sees(int64_t q) const { return lo[q] <= hi[q]; }
};

inline TileRange tile_range(const QueryBlock& block, int64_t begin, int64_t n, int64_t chunk) {
    TileRange r{{}, {}, kChunk, -1};
    const int64_t base = chunk * kChunk;
    for (int64_t q = 0; q < n; ++q) {
        const int64_t first = block.first[begin + q] - base, last = block.last[begin + q] - base;
        r.lo[q] = first > 0 ? first : 0;
        r.hi[q] = last < kChunk - 1 ? last : kChunk - 1;
        if (!r.sees(q)) continue;
        r.tile_lo = r.lo[q] < r.tile_lo ? r.lo[q] : r.tile_lo;
        r.tile_hi = r.hi[q] > r.tile_hi ? r.hi[q] : r.tile_hi;
    }
    return r;
}

// Units of 16 slots [begin, end) that a tile computes, and one query's visible slots [lo, hi] among them.
struct Slots {
    int64_t begin, end, lo, hi;
    bool all_visible() const { return lo == begin * 16 && hi == end * 16 - 1; }
};

// Applies the soft cap and hides what the query does not see (score -infinity); returns the maximum.
inline float mask_scores(float* s, const Slots& slots, float softcap) {
    const vi lowest = vi_set(static_cast<int32_t>(0xff800000u));  // -infinity
    vf top[kVecs16];
    for (int v = 0; v < kVecs16; ++v) top[v] = vf_bits(lowest);
    if (softcap == 0.0f && slots.all_visible()) {
        for (int64_t i = slots.begin * 16; i < slots.end * 16; i += 16)
            for (int v = 0; v < kVecs16; ++v) top[v] = vf_max(top[v], vf_load(s + i + v * kLanes));
        return max16(top);
    }
    for (int64_t i = slots.begin * 16; i < slots.end * 16; i += 16) {
        for (int v = 0; v < kVecs16; ++v) {
            const vi mask = lane_mask(i + v * kLanes, slots.lo, slots.hi);
            vf x = vf_load(s + i + v * kLanes);
            if (softcap != 0.0f) x = vf_mul(vf_set(softcap), vf_tanh(vf_div(x, vf_set(softcap))));
            x = vf_bits(vi_or(vi_and(vi_bits(x), mask), vi_and(lowest, vi_xor(mask, vi_set(-1)))));
            vf_store(s + i + v * kLanes, x);
            top[v] = vf_max(top[v], x);
        }
    }
    return max16(top);
}

// Scores in place to weights e^(score - maximum), 0 where hidden; adds them up in 16 lanes.
inline void weigh_scores(float* s, const Slots& slots, float maximum, vf* sums) {
    for (int v = 0; v < kVecs16; ++v) sums[v] = vf_zero();
    const bool all_visible = slots.all_visible();
    for (int64_t i = slots.begin * 16; i < slots.end * 16; i += 16) {
        for (int v = 0; v < kVecs16; ++v) {
            vf weight = vf_exp(vf_sub(vf_load(s + i + v * kLanes), vf_set(maximum)));
            if (!all_visible)
                weight = vf_bits(vi_and(vi_bits(weight), lane_mask(i + v * kLanes, slots.lo, slots.hi)));
            vf_store(s + i + v * kLanes, weight);
            sums[v] = vf_add(sums[v], weight);
        }
    }
}

// Factors of merging (m, ...) with (later_m, ...) for 16 pairs: e^(m - max) and e^(later_m - max); m becomes the
// maximum. A maximum of -infinity stands for an empty state; not both may be empty.
struct MergeFactors {
    float kept[16], added[16];
};
inline void merge_factors(float* m, const float* later_m, MergeFactors* f) {
    for (int i = 0; i < 16; i += kLanes) {
        const vf a = vf_load(m + i), b = vf_load(later_m + i), top = vf_max(a, b);
        vf_store(f->kept + i, vf_exp(vf_sub(a, top)));
        vf_store(f->added + i, vf_exp(vf_sub(b, top)));
        vf_store(m + i, top);
    }
}

// Scores [NQ][kChunk] to weights, and the states' maxima and sums to what they are after this chunk. Queries that see
// nothing of the chunk get weights of 0.
template <int NQ>
inline void softmax_tile(const TileRange& range, float softcap, float* scores, float* state, int64_t stride,
                         MergeFactors* factors) {
    Slots slots[NQ];
    float maxima[16] = {}, chunk_maxima[16] = {};
    for (int q = 0; q < NQ; ++q) {
        slots[q] = {range.tile_lo / 16, range.tile_hi / 16 + 1, range.lo[q], range.hi[q]};
        if (!range.sees(q)) continue;
        maxima[q] = state[q * stride + kStateMaximum];
        chunk_maxima[q] = mask_scores(scores + q * kChunk, slots[q], softcap);
    }
    merge_factors(maxima, chunk_maxima, factors);
    for (int q = 0; q < NQ; ++q) {
        float* s = scores + q * kChunk;
        if (!range.sees(q)) {
            for (int64_t i = slots[q].begin * 16; i < slots[q].end * 16; ++i) s[i] = 0.0f;
            continue;
        }
        vf sums[kVecs16];
        weigh_scores(s, slots[q], chunk_maxima[q], sums);
        float* st = state + q * stride;
        st[kStateMaximum] = maxima[q];
        for (int i = 0; i < kVecs16; ++i) {
            const vf added = vf_mul(sums[i], vf_set(factors->added[q]));
            vf_store(st + i * kLanes, vf_fma(vf_load(st + i * kLanes), vf_set(factors->kept[q]), added));
        }
    }
}

// Calls f with a compile-time constant that equals n, which is in [1, N].
template <int N> struct Constant {
    static constexpr int value = N;
};
template <int N, class F> inline void with_constant(int64_t n, const F& f) {
    if (n == N) {
        f(Constant<N>());
    } else if constexpr (N > 1) {
        with_constant<N - 1>(n, f);
    }
}

// Scores [NQ][kChunk] of a tile against the slots that any of its queries sees.
template <int NQ, class Load, class Fetching>
void score_tile(const float* const* q, const TileRange& range, const typename Load::Element* k, int64_t hd,
                const Fetching& fetch, float* scores) {
    const int64_t unit_begin = range.tile_lo / 16, unit_end = range.tile_hi / 16 + 1;
    if (kTileLanes == kChunk && unit_begin == 0 && unit_end == kChunk / 16) {
        product<NQ, kTileLanes / kLanes, Load>(q, k, kChunk, 0, hd, fetch, [=](int i, int v, vf x) {
            vf_store(scores + i * kChunk + v * kLanes, x);
        });
        return;
    }
    for (int64_t unit = unit_begin; unit < unit_end; ++unit)
        product<NQ, kVecs16, Load>(q, k + unit * 16, kChunk, 0, hd, NoFetch(), [=](int i, int v, vf x) {
            vf_store(scores + i * kChunk + unit * 16 + v * kLanes, x);
        });
}

// Adds the weighted values of a chunk to the states of a tile.
template <int NQ, class Load, class Fetching>
void value_tile(const float* scores, const TileRange& range, const MergeFactors& factors,
                const typename Load::Element* v, int64_t hd, const Fetching& fetch, float* states) {
    const int64_t stride = state_size(hd), begin = range.tile_lo, end = range.tile_hi + 1;
    const float* weights[NQ];
    for (int q = 0; q < NQ; ++q) weights[q] = scores + q * kChunk;
    const auto merge_values = [&](int64_t lane) {
        return [&, lane](int q, int i, vf x) {
            if (!range.sees(q)) return;
            float* o = states + q * stride + kStateValues + lane + i * kLanes;
            vf_store(o, vf_fma(vf_load(o), vf_set(factors.kept[q]), vf_mul(x, vf_set(factors.added[q]))));
        };
    };
    int64_t lane = 0;
    if (kTileLanes <= hd) {
        product<NQ, kTileLanes / kLanes, Load>(weights, v, hd, begin, end, fetch, merge_values(0));
        lane = kTileLanes;
    }
    for (; lane + kTileLanes <= hd; lane += kTileLanes)
        product<NQ, kTileLanes / kLanes, Load>(weights, v + lane, hd, begin, end, NoFetch(), merge_values(lane));
    for (; lane < hd; lane += 16)
        product<NQ, kVecs16, Load>(weights, v + lane, hd, begin, end, NoFetch(), merge_values(lane));
}

// Up to kMaxTiles tiles of queries against one chunk: all scores, all weights, all values, so that keys and values
// each stay in the first-level cache for all tiles.
template <class LoadK, class LoadV>
void attend_tiles(const QueryBlock& block, int64_t first_query, int64_t n, int64_t chunk,
                  const typename LoadK::Element* k, const typename LoadV::Element* v, const ChunkRef& kv,
                  float* state, float* scores) {
    const int64_t hd = block.head_dim, stride = state_size(hd), tiles = (n + kTile - 1) / kTile;
    const bool fetching = first_query == 0 && kv.next_k != nullptr;
    TileRange ranges[kMaxTiles];
    MergeFactors factors[kMaxTiles];
    const auto for_each_tile = [&](const auto& f) {
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t begin = n * t / tiles;
            with_constant<kTile>(n * (t + 1) / tiles - begin, [&](auto nq) { f(t, begin, nq); });
        }
    };
    for_each_tile([&](int64_t t, int64_t begin, auto nq) {
        ranges[t] = tile_range(block, first_query + begin, nq.value, chunk);
        if (ranges[t].tile_lo > ranges[t].tile_hi) return;
        const float* const* q = block.q + first_query + begin;
        float* s = scores + begin * kChunk;
        if (t == 0 && fetching) {
            const auto bytes = static_cast<int64_t>(kv_chunk_bytes(block.types.k, hd));
            score_tile<nq.value, LoadK>(q, ranges[t], k, hd, Fetch{kv.next_k, bytes / hd}, s);
        } else {
            score_tile<nq.value, LoadK>(q, ranges[t], k, hd, NoFetch(), s);
        }
    });
    for_each_tile([&](int64_t t, int64_t begin, auto nq) {
        if (ranges[t].tile_lo > ranges[t].tile_hi) return;
        softmax_tile<nq.value>(ranges[t], block.softcap, scores + begin * kChunk,
                               state + (first_query + begin) * stride, stride, &factors[t]);
    });
    for_each_tile([&](int64_t t, int64_t begin, auto nq) {
        if (ranges[t].tile_lo > ranges[t].tile_hi) return;
        const float* s = scores + begin * kChunk;
        float* states = state + (first_query + begin) * stride;
        if (t == 0 && fetching) {
            const auto bytes = static_cast<int64_t>(kv_chunk_bytes(block.types.v, hd));
            value_tile<nq.value, LoadV>(s, ranges[t], factors[t], v, hd, Fetch{kv.next_v, bytes / kChunk}, states);
        } else {
            value_tile<nq.value, LoadV>(s, ranges[t], factors[t], v, hd, NoFetch(), states);
        }
    });
}

template <class LoadK, class LoadV>
void attend_all(const QueryBlock& block, int64_t chunk, const typename LoadK::Element* k,
                const typename LoadV::Element* v, const ChunkRef& kv, float* state, float* scores) {
    for (int64_t first = 0; first < block.n; first += kTile * kMaxTiles) {
        const int64_t n = block.n - first < kTile * kMaxTiles ? block.n - first : kTile * kMaxTiles;
        attend_tiles<LoadK, LoadV>(block, first, n, chunk, k, v, kv, state, scores);
    }
}

inline float load_one_f16(const uint8_t* p) {
    uint16_t half[kLanes] = {};
    __builtin_memcpy(half, p, 2);
    float lanes[kLanes];
    vf_store(lanes, vf_load_f16(half));
    return lanes[0];
}

inline vf load_int8(const int8_t* p) {
#if defined(SPECDEC_ISA_AVX512) || defined(SPECDEC_ISA_AVX512_VNNI)
    return vf_from_int(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(SPECDEC_ISA_AVX2) || defined(SPECDEC_ISA_AVX_VNNI)
    return vf_from_int(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    int32_t wide[kLanes];
    for (int i = 0; i < kLanes; ++i) wide[i] = p[i];
    return vf_from_int(vi_load(wide));
#endif
}

// A chunk's values as float32, exactly: an f16 scale times an int8 has at most 19 significant bits. `inner` is the
// storage's fast axis: kChunk tokens for keys, head_dim elements for values.
void widen_f16(const uint8_t* chunk, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += kLanes) vf_store(out + i, vf_load_f16(chunk + 2 * i));
}

void widen_q8_keys(const uint8_t* chunk, int64_t hd, float* out) {
    const auto* values = reinterpret_cast<const int8_t*>(chunk);
    const uint8_t* scales = chunk + hd * kChunk;
    for (int64_t d = 0; d < hd; ++d)
        for (int64_t t = 0; t < kChunk; t += kLanes)
            vf_store(out + d * kChunk + t,
                     vf_mul(load_int8(values + d * kChunk + t), vf_load_f16(scales + 2 * (d / 32 * kChunk + t))));
}

void widen_q8_values(const uint8_t* chunk, int64_t hd, int64_t slot_begin, int64_t slot_end, float* out) {
    const auto* values = reinterpret_cast<const int8_t*>(chunk);
    const uint8_t* scales = chunk + hd * kChunk;
    for (int64_t t = slot_begin; t < slot_end; ++t)
        for (int64_t block = 0; block < hd / 32; ++block) {
            const vf scale = vf_set(load_one_f16(scales + 2 * (t * (hd / 32) + block)));
            for (int64_t i = block * 32; i < block * 32 + 32; i += kLanes)
                vf_store(out + t * hd + i, vf_mul(load_int8(values + t * hd + i), scale));
        }
}

const float* widened_keys(KvType type, const uint8_t* chunk, int64_t hd, float* out) {
    if (type == KvType::f32) return reinterpret_cast<const float*>(chunk);
    if (type == KvType::f16) {
        widen_f16(chunk, hd * kChunk, out);
    } else {
        widen_q8_keys(chunk, hd, out);
    }
    return out;
}

const float* widened_values(KvType type, const uint8_t* chunk, int64_t hd, float* out) {
    if (type == KvType::f32) return reinterpret_cast<const float*>(chunk);
    if (type == KvType::f16) {
        widen_f16(chunk, hd * kChunk, out);
    } else {
        widen_q8_values(chunk, hd, 0, kChunk, out);
    }
    return out;
}

void attend(const QueryBlock& block, int64_t chunk, const ChunkRef& kv, float* state, float* scratch) {
    float* scores = scratch;
    float* keys = scores + kMaxTile * kMaxTiles * kChunk;
    float* values = keys + kChunk * block.head_dim;
    if (block.types.k == KvType::f16 && block.types.v == KvType::f16) {
        attend_all<LoadF16, LoadF16>(block, chunk, reinterpret_cast<const uint16_t*>(kv.k),
                                       reinterpret_cast<const uint16_t*>(kv.v), kv, state, scores);
        return;
    }
    attend_all<LoadF32, LoadF32>(block, chunk, widened_keys(block.types.k, kv.k, block.head_dim, keys),
                                   widened_values(block.types.v, kv.v, block.head_dim, values), kv, state, scores);
}

void reset(float* state, int64_t n, int64_t hd) {
    const int64_t stride = state_size(hd);
    for (int64_t q = 0; q < n; ++q) {
        for (int64_t i = 0; i < stride; i += kLanes) vf_store(state + q * stride + i, vf_zero());
        state[q * stride + kStateMaximum] = -__builtin_inff();
    }
}

void merge(float* state, const float* later, int64_t n, int64_t hd) {
    const int64_t stride = state_size(hd);
    for (int64_t q = 0; q < n; ++q, state += stride, later += stride) {
        if (later[kStateMaximum] == -__builtin_inff()) continue;
        MergeFactors f;
        float maximum[16] = {state[kStateMaximum]}, later_maximum[16] = {later[kStateMaximum]};
        merge_factors(maximum, later_maximum, &f);
        for (int64_t i = 0; i < stride; i += kLanes) {
            const vf added = vf_mul(vf_load(later + i), vf_set(f.added[0]));
            vf_store(state + i, vf_fma(vf_load(state + i), vf_set(f.kept[0]), added));
        }
        state[kStateMaximum] = maximum[0];
    }
}

void finish(const float* state, int64_t n, int64_t hd, float* const* out) {
    const int64_t stride = state_size(hd);
    for (int64_t q = 0; q < n; ++q, state += stride) {
        float lanes[16];
        for (int i = 0; i < 16; ++i) lanes[i] = state[i];
        const vf inverse = vf_set(1.0f / tree_sum(lanes, 16));
        for (int64_t i = 0; i < hd; i += kLanes)
            vf_store(out[q] + i, vf_mul(vf_load(state + kStateValues + i), inverse));
    }
}

inline vf saturated(vf x) {  // operand order: NaN stays
    return vf_min(vf_set(65504.0f), vf_max(vf_set(-65504.0f), x));
}

void to_f16(const float* x, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; i += kLanes) vf_store_f16(out + i, saturated(vf_load(x + i)));
}

// Blocks of 32 with scale max|x| / 127 in f16, as in GGML's Q8_0.
void to_q8(const float* x, int64_t n, int8_t* out, uint16_t* scales) {
    for (int64_t block = 0; block < n / 32; ++block) {
        const float* p = x + block * 32;
        vf top[kVecs16];
        for (int v = 0; v < kVecs16; ++v)
            top[v] = vf_max(vf_abs(vf_load(p + v * kLanes)), vf_abs(vf_load(p + 16 + v * kLanes)));
        float padded[kLanes] = {max16(top) / 127.0f};
        uint16_t half[kLanes];
        vf_store_f16(half, saturated(vf_load(padded)));
        scales[block] = half[0];
        vf_store(padded, vf_load_f16(half));
        const float inverse = padded[0] == 0.0f ? 0.0f : 1.0f / padded[0];
        for (int i = 0; i < 32; i += kLanes) {
            const vf scaled = vf_mul(vf_load(p + i), vf_set(inverse));
            const vf clamped = vf_min(vf_set(127.0f), vf_max(vf_set(-127.0f), scaled));
            int32_t wide[kLanes];
            vi_store(wide, vf_to_int(clamped));
            for (int j = 0; j < kLanes; ++j) out[block * 32 + i + j] = static_cast<int8_t>(wide[j]);
        }
    }
}

void store_k(KvType type, const float* k, int64_t hd, uint8_t* chunk, int64_t slot) {
    if (type == KvType::f32) {
        auto* keys = reinterpret_cast<float*>(chunk);
        for (int64_t d = 0; d < hd; ++d) keys[d * kChunk + slot] = k[d];
    } else if (type == KvType::f16) {
        uint16_t row[kMaxHeadDim];
        to_f16(k, hd, row);
        auto* keys = reinterpret_cast<uint16_t*>(chunk);
        for (int64_t d = 0; d < hd; ++d) keys[d * kChunk + slot] = row[d];
    } else {
        int8_t row[kMaxHeadDim];
        uint16_t scales[kMaxHeadDim / 32];
        to_q8(k, hd, row, scales);
        for (int64_t d = 0; d < hd; ++d) chunk[d * kChunk + slot] = static_cast<uint8_t>(row[d]);
        auto* out = reinterpret_cast<uint16_t*>(chunk + hd * kChunk);
        for (int64_t block = 0; block < hd / 32; ++block) out[block * kChunk + slot] = scales[block];
    }
}

void store_v(KvType type, const float* v, int64_t hd, uint8_t* chunk, int64_t slot) {
    if (type == KvType::f32) {
        __builtin_memcpy(chunk + slot * hd * 4, v, static_cast<size_t>(hd) * 4);
    } else if (type == KvType::f16) {
        to_f16(v, hd, reinterpret_cast<uint16_t*>(chunk) + slot * hd);
    } else {
        to_q8(v, hd, reinterpret_cast<int8_t*>(chunk) + slot * hd,
              reinterpret_cast<uint16_t*>(chunk + hd * kChunk) + slot * (hd / 32));
    }
}

}  // namespace

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {reset, attend, merge, finish, store_k, store_v};

}  // namespace specdec::SPECDEC_ISA

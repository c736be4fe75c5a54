// Attention over chunks of 64 tokens. The KV of one layer and KV head is cut at absolute multiples of kChunk; each
// chunk yields (maximum, sum of weights, weighted values) per query; the results of the kGroupChunks chunks of a group
// are merged in position order, and so are those of the groups. Nothing depends on how many queries are processed
// together or on which thread does a group. All ISAs give the same bits.
//
// Keys are stored transposed (a lane is a token), values row by row (a lane is an element of the head).
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace specdec {

constexpr int64_t kChunk = 64;       // tokens per page of the cache
constexpr int64_t kGroupChunks = 4;  // chunks that one work item covers
constexpr int64_t kGroupTokens = kChunk * kGroupChunks;
constexpr int64_t kMaxHeadDim = 512;

enum class KvType : uint8_t { f32, f16, q8_0 };

// Bytes of the keys (equally: the values) of one chunk. q8_0: int8 values, then one f16 scale per 32 of a head.
constexpr size_t kv_chunk_bytes(KvType type, int64_t head_dim) {
    const auto n = static_cast<size_t>(head_dim * kChunk);
    return type == KvType::f32 ? n * 4 : type == KvType::f16 ? n * 2 : n + n / 32 * 2;
}

// Heads are padded with zeros to a multiple of 32; head_dim below is the padded size.
constexpr int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 31) / 32 * 32; }

struct KvTypes {
    KvType k = KvType::f16, v = KvType::f16;
};

// Keys and values of one chunk of one layer and KV head, and those to fetch into the cache meanwhile (or null).
struct ChunkRef {
    const uint8_t* k = nullptr;
    const uint8_t* v = nullptr;
    const uint8_t* next_k = nullptr;
    const uint8_t* next_v = nullptr;
};

// Queries that share a KV head.
struct QueryBlock {
    const float* const* q = nullptr;  // [n] vectors of head_dim elements, rotated and multiplied by the scale
    const int64_t* first = nullptr;   // [n] positions that a query sees: first .. last
    const int64_t* last = nullptr;
    int64_t n = 0, head_dim = 0;
    float softcap = 0.0f;  // 0: none
    KvTypes types;
};

// State of one query: [0, 16) partial sums of weights, [16] maximum, [32, 32 + head_dim) weighted values.
constexpr int64_t kStateMaximum = 16, kStateValues = 32;
constexpr int64_t state_size(int64_t head_dim) { return kStateValues + head_dim; }

constexpr int64_t kMaxTile = 6;   // queries that share registers
constexpr int64_t kMaxTiles = 6;  // tiles that share a pass over keys and values
// Floats of scratch memory that attend() needs.
constexpr int64_t attention_scratch_size(int64_t head_dim) { return kMaxTile * kMaxTiles * kChunk + 2 * kChunk * head_dim; }

struct AttentionKernels {
    // Empty states for n queries.
    void (*reset)(float* state, int64_t n, int64_t head_dim);
    // Merges chunk number `chunk` into the states; queries that see nothing of it keep theirs.
    void (*attend)(const QueryBlock& block, int64_t chunk, const ChunkRef& kv, float* state, float* scratch);
    // Merges `later` (of a group of higher positions) into `state`.
    void (*merge)(float* state, const float* later, int64_t n, int64_t head_dim);
    // Writes the head's output, [n] vectors of head_dim elements.
    void (*finish)(const float* state, int64_t n, int64_t head_dim, float* const* out);
    // Stores one token's key or value in slot 0 .. kChunk - 1. Values beyond the range of f16 saturate.
    void (*store_k)(KvType type, const float* k, int64_t head_dim, uint8_t* chunk, int64_t slot);
    void (*store_v)(KvType type, const float* v, int64_t head_dim, uint8_t* chunk, int64_t slot);
};

const AttentionKernels& attention_kernels_for(Isa isa);

// Copies one token between chunks of equal type.
void copy_k(KvType type, int64_t head_dim, const uint8_t* from, int64_t from_slot, uint8_t* to, int64_t to_slot);
void copy_v(KvType type, int64_t head_dim, const uint8_t* from, int64_t from_slot, uint8_t* to, int64_t to_slot);

}  // namespace specdec

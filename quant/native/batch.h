// The rows of one pass, arranged for attention: which sequence each belongs to, what it sees, and how the work is cut.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_cache.h"

namespace specdec {

constexpr int64_t kMaxBatchRows = 512;     // rows of one pass; longer batches are cut
constexpr int64_t kMaxBlockQueries = 128;  // queries that one work item of attention holds

// Rows of one sequence within a pass.
struct Segment {
    int32_t sequence = -1;
    int64_t committed = 0;          // tokens that are not pending
    bool tree = false;
    std::vector<int64_t> rows;      // rows of the pass, ascending
    std::vector<int64_t> pending;   // their index among the sequence's pending rows
    std::vector<uint8_t*> pages;    // by chunk
};

struct BatchRow {
    int32_t token = 0;
    int64_t position = 0;
    KvCache::Slot slot{};  // where its key and value go
};

struct Batch {
    std::vector<BatchRow> rows;
    std::vector<int64_t> outputs;  // rows of this pass whose logits are wanted, ascending
    std::vector<Segment> segments;
    int64_t max_position = 0;
};

// What layers need to have in common to share a division of work.
struct AttentionShape {
    int64_t heads_per_kv = 1, n_head_kv = 1, head_dim = 0, window = 0;
    bool operator==(const AttentionShape&) const = default;
};

// Rows [begin, end) of a segment and the groups of chunks that any of them sees.
struct Block {
    int64_t segment = 0, begin = 0, end = 0;
    int64_t first_group = 0, end_group = 0;
    int64_t state_offset = 0;  // floats; states of [KV head][group][query]
    int64_t item_begin = 0;    // number of its first item
};

// Items are (block, KV head, group) when `split`, else (block, KV head). The split does not change any bit.
struct Division {
    std::vector<Block> blocks;
    bool split = false;
    int64_t num_items = 0, state_floats = 0;
};

Division divide(const Batch& batch, const AttentionShape& shape, int threads);

inline int64_t first_visible(int64_t position, int64_t window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

}  // namespace specdec

#include "batch.h"

#include <algorithm>

namespace specdec {

Division divide(const Batch& batch, const AttentionShape& shape, int threads) {
    Division d;
    const int64_t rows_per_block = std::max<int64_t>(1, kMaxBlockQueries / shape.heads_per_kv);
    int64_t items = 0;
    for (size_t s = 0; s < batch.segments.size(); ++s) {
        const Segment& segment = batch.segments[s];
        const auto n = static_cast<int64_t>(segment.rows.size());
        for (int64_t begin = 0; begin < n; begin += rows_per_block) {
            Block block;
            block.segment = static_cast<int64_t>(s);
            block.begin = begin;
            block.end = std::min(n, begin + rows_per_block);
            int64_t lowest = INT64_MAX, highest = 0;
            for (int64_t i = block.begin; i < block.end; ++i) {
                const int64_t position = batch.rows[segment.rows[i]].position;
                lowest = std::min(lowest, first_visible(position, shape.window));
                highest = std::max(highest, position);
            }
            block.first_group = lowest / kGroupTokens;
            block.end_group = highest / kGroupTokens + 1;
            d.blocks.push_back(block);
            items += shape.n_head_kv;
        }
    }
    d.split = items < int64_t{4} * threads;
    for (Block& block : d.blocks) {
        const int64_t groups = block.end_group - block.first_group;
        block.item_begin = d.num_items;
        block.state_offset = d.state_floats;
        d.num_items += shape.n_head_kv * (d.split ? groups : 1);
        if (d.split)
            d.state_floats += shape.n_head_kv * groups * (block.end - block.begin) * shape.heads_per_kv *
                              state_size(shape.head_dim);
    }
    return d;
}

}  // namespace specdec

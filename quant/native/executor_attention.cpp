// The attention step: heads are normalized, rotated and stored; then work items attend, each for one KV head.
#include <algorithm>
#include <cstring>

#include "executor.h"

namespace specdec {

void Executor::prepare_head(const AttentionStep& step, int64_t r, int64_t head) {
    const BatchRow& batch_row = batch_.rows[r];
    const int64_t hd = step.head_dim, padded = step.padded(), group = step.n_head / step.n_head_kv;
    // Normalizes or copies one head, pads and rotates it.
    const auto prepare = [&](const float* x, int norm, float eps, float* out) {
        if (norm >= 0) {
            row_kernels_.rms_norm(x, program_->vectors[norm].data(), eps, out, hd, hd);
        } else if (out != x) {
            std::memcpy(out, x, static_cast<size_t>(hd) * sizeof(float));
        }
        std::fill(out + hd, out + padded, 0.0f);
        if (step.rope < 0) return;
        const RopeTable& rope = ropes_[step.rope];
        const int64_t offset = batch_row.position * rope.half;
        row_kernels_.rope(out, rope.cosine.data() + offset, rope.sine.data() + offset, out, rope.half);
    };
    for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        float* out = row(step.rotated, r) + h * padded;
        prepare(row(step.q, r) + h * hd, step.q_norm, step.q_norm_eps, out);
        row_kernels_.scale(out, step.scale, out, hd);
    }
    alignas(64) float padded_head[kMaxHeadDim];
    const KvLayout& layout = cache_.layout();
    const KvTypes types = layout.types();
    const auto [page, slot] = batch_row.slot;
    prepare(row(step.k, r) + head * hd, step.k_norm, step.k_norm_eps, padded_head);
    attention_kernels_.store_k(types.k, padded_head, padded, layout.k(page, step.layer, head), slot);
    std::memcpy(padded_head, row(step.v, r) + head * hd, static_cast<size_t>(hd) * sizeof(float));
    std::fill(padded_head + hd, padded_head + padded, 0.0f);
    attention_kernels_.store_v(types.v, padded_head, padded, layout.v(page, step.layer, head), slot);
}

void Executor::attend(const AttentionStep& step, const Division& division, int64_t number, int thread) {
    // The blocks are few and in order.
    const auto after = std::upper_bound(division.blocks.begin(), division.blocks.end(), number,
                                        [](int64_t n, const Block& b) { return n < b.item_begin; });
    const Block& block = *(after - 1);
    const int64_t groups = block.end_group - block.first_group, local = number - block.item_begin;
    AttentionItem item{&step, &division, &block, local, block.first_group, block.end_group, 0};
    item.queries = (block.end - block.begin) * (step.n_head / step.n_head_kv);
    if (division.split) {
        item.head = local / groups;
        item.first_group = block.first_group + local % groups;
        item.end_group = item.first_group + 1;
    }
    attend_item(item, thread);
}

void Executor::attend_item(const AttentionItem& item, int thread) {
    const AttentionStep& step = *item.step;
    const Block& block = *item.block;
    const Segment& segment = batch_.segments[block.segment];
    ThreadScratch& scratch = scratch_[thread];
    const int64_t group = step.n_head / step.n_head_kv, hd = step.padded();
    for (int64_t q = 0; q < item.queries; ++q) {
        const int64_t r = segment.rows[block.begin + q / group];
        scratch.q[q] = row(step.rotated, r) + (item.head * group + q % group) * hd;
        scratch.last[q] = batch_.rows[r].position;
        scratch.first[q] = first_visible(scratch.last[q], step.window);
    }
    const int64_t stride = item.queries * state_size(hd);
    float* own = scratch.floats.floats() + attention_scratch_size(hd);
    const int64_t groups = block.end_group - block.first_group;
    if (item.division->split && groups > 1) {
        float* state = states_.floats() + block.state_offset +
                       (item.head * groups + item.first_group - block.first_group) * stride;
        attend_groups(item, item.first_group, item.end_group, state, thread);
        merge_groups(item, thread);
        return;
    }
    attend_groups(item, item.first_group, item.first_group + 1, own, thread);
    for (int64_t g = item.first_group + 1; g < item.end_group; ++g) {
        attend_groups(item, g, g + 1, own + stride, thread);
        attention_kernels_.merge(own, own + stride, item.queries, hd);
    }
    finish_item(item, own, thread);
}

void Executor::attend_groups(const AttentionItem& item, int64_t first_group, int64_t end_group, float* state,
                             int thread) {
    const AttentionStep& step = *item.step;
    const Segment& segment = batch_.segments[item.block->segment];
    ThreadScratch& scratch = scratch_[thread];
    attention_kernels_.reset(state, item.queries, step.padded());
    const auto n = static_cast<size_t>(item.queries);
    const int64_t lowest = *std::min_element(scratch.first.begin(), scratch.first.begin() + n) / kChunk;
    const int64_t highest = *std::max_element(scratch.last.begin(), scratch.last.begin() + n) / kChunk;
    const KvLayout& layout = cache_.layout();
    const QueryBlock queries{scratch.q.data(), scratch.first.data(), scratch.last.data(), item.queries,
                             step.padded(), step.softcap, layout.types()};
    const int64_t begin = std::max(lowest, first_group * kGroupChunks);
    const int64_t end = std::min(highest + 1, end_group * kGroupChunks);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
        if (segment.tree && (chunk + 1) * kChunk > segment.committed) {
            attend_tree_chunk(item, chunk, state, thread);
            continue;
        }
        uint8_t* page = segment.pages[chunk];
        ChunkRef kv{layout.k(page, step.layer, item.head), layout.v(page, step.layer, item.head)};
        // The next chunk of this head is fetched even past the group: whoever gets it finds it in a shared cache.
        if (chunk < highest && chunk + 1 < static_cast<int64_t>(segment.pages.size())) {
            kv.next_k = layout.k(segment.pages[chunk + 1], step.layer, item.head);
            kv.next_v = layout.v(segment.pages[chunk + 1], step.layer, item.head);
        }
        attention_kernels_.attend(queries, chunk, kv, state, scratch.floats.floats());
    }
}

// A chunk that holds pending rows of a tree looks different to every row: it is put together along the row's ancestors.
void Executor::attend_tree_chunk(const AttentionItem& item, int64_t chunk, float* state, int thread) {
    const AttentionStep& step = *item.step;
    const Segment& segment = batch_.segments[item.block->segment];
    const KvCache::Pending& pending = cache_.pending(segment.sequence);
    const KvLayout& layout = cache_.layout();
    const KvTypes types = layout.types();
    ThreadScratch& scratch = scratch_[thread];
    const int64_t hd = step.padded(), group = step.n_head / step.n_head_kv, base = chunk * kChunk;
    uint8_t *keys = scratch.keys.data(), *values = scratch.values.data();
    if (base < segment.committed) {
        uint8_t* page = segment.pages[chunk];
        std::memcpy(keys, layout.k(page, step.layer, item.head), kv_chunk_bytes(types.k, hd));
        std::memcpy(values, layout.v(page, step.layer, item.head), kv_chunk_bytes(types.v, hd));
    }
    for (int64_t i = item.block->begin; i < item.block->end; ++i) {
        const int64_t q = (i - item.block->begin) * group;
        if (scratch.last[q] < base) continue;
        for (int64_t p = segment.pending[i]; p >= 0 && pending.positions[p] >= base; p = pending.parents[p]) {
            if (pending.positions[p] >= base + kChunk) continue;
            const KvCache::Slot from = cache_.pending_slot(segment.sequence, p);
            const int64_t slot = pending.positions[p] - base;
            copy_k(types.k, hd, layout.k(from.page, step.layer, item.head), from.slot, keys, slot);
            copy_v(types.v, hd, layout.v(from.page, step.layer, item.head), from.slot, values, slot);
        }
        const QueryBlock queries{scratch.q.data() + q, scratch.first.data() + q, scratch.last.data() + q,
                                 group, hd, step.softcap, types};
        attention_kernels_.attend(queries, chunk, {keys, values}, state + q * state_size(hd), scratch.floats.floats());
    }
}

// Whoever finishes the last group of a KV head merges all of them, in order.
void Executor::merge_groups(const AttentionItem& item, int thread) {
    const Block& block = *item.block;
    const int64_t hd = item.step->padded(), stride = item.queries * state_size(hd);
    const auto groups = static_cast<int32_t>(block.end_group - block.first_group);
    const int64_t counter = (&block - item.division->blocks.data()) * item.step->n_head_kv + item.head;
    if (unfinished_[counter].fetch_add(1, std::memory_order_acq_rel) + 1 < groups) return;
    unfinished_[counter].store(0, std::memory_order_relaxed);
    float* state = states_.floats() + block.state_offset + item.head * groups * stride;
    for (int32_t g = 1; g < groups; ++g) attention_kernels_.merge(state, state + g * stride, item.queries, hd);
    finish_item(item, state, thread);
}

void Executor::finish_item(const AttentionItem& item, const float* state, int thread) {
    const AttentionStep& step = *item.step;
    const Segment& segment = batch_.segments[item.block->segment];
    ThreadScratch& scratch = scratch_[thread];
    const int64_t hd = step.head_dim, padded = step.padded(), group = step.n_head / step.n_head_kv;
    const auto output = [&](int64_t q) {
        return row(step.out, segment.rows[item.block->begin + q / group]) + (item.head * group + q % group) * hd;
    };
    if (hd == padded) {
        for (int64_t q = 0; q < item.queries; ++q) scratch.out[q] = output(q);
        attention_kernels_.finish(state, item.queries, padded, scratch.out.data());
        return;
    }
    alignas(64) float padded_head[kMaxHeadDim];
    float* const destination = padded_head;
    for (int64_t q = 0; q < item.queries; ++q) {
        attention_kernels_.finish(state + q * state_size(padded), 1, padded, &destination);
        std::memcpy(output(q), padded_head, static_cast<size_t>(hd) * sizeof(float));
    }
}

}  // namespace specdec

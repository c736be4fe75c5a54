// From the caller's rows to passes: checks, pending KV, batches.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "executor.h"

namespace specdec {

void Executor::validate(const ForwardRows& rows) const {
    if (rows.num_rows < 1) throw std::invalid_argument("a forward pass needs rows");
    int64_t tokens = INT32_MAX;
    for (const Step& step : program_->steps)
        if (const auto* row_step = std::get_if<RowStep>(&step))
            for (const RowOp& op : row_step->ops)
                if (op.kind == RowOp::Kind::embed) tokens = std::min(tokens, program_->matrices[op.weight].n);
    for (int64_t i = 0; i < rows.num_rows; ++i) {
        if (rows.tokens[i] < 0 || rows.tokens[i] >= tokens)
            throw std::invalid_argument("row " + std::to_string(i) + ": token id " + std::to_string(rows.tokens[i]) +
                                        " is not below " + std::to_string(tokens));
        const int64_t parent = rows.parents[i];
        if (parent < -1 || parent >= i || (parent >= 0 && rows.sequences[parent] != rows.sequences[i]))
            throw std::invalid_argument("row " + std::to_string(i) + ": its parent " + std::to_string(parent) +
                                        " is not an earlier row of the same sequence");
        const int64_t expected = parent < 0 ? cache_.length(rows.sequences[i]) : int64_t{rows.positions[parent]} + 1;
        if (rows.positions[i] != expected)
            throw std::invalid_argument("row " + std::to_string(i) + " has position " +
                                        std::to_string(rows.positions[i]) + "; " + std::to_string(expected) +
                                        " is next on its path");
    }
    for (int64_t i = 0; i < rows.num_outputs; ++i)
        if (rows.outputs[i] < (i == 0 ? 0 : rows.outputs[i - 1] + 1) || rows.outputs[i] >= rows.num_rows)
            throw std::invalid_argument("output rows are not ascending indices of this batch");
}

void Executor::drop_pending() {
    for (int32_t sequence : active_) cache_.drop_pending(sequence);
    active_.clear();
}

void Executor::begin_sequences(const ForwardRows& rows) {
    struct Own {
        std::vector<int64_t> ids, parents;
    };
    std::unordered_map<int32_t, Own> own;
    pending_index_.resize(static_cast<size_t>(rows.num_rows));
    active_.clear();
    for (int64_t i = 0; i < rows.num_rows; ++i) {
        const auto [it, is_new] = own.try_emplace(rows.sequences[i]);
        if (is_new) active_.push_back(rows.sequences[i]);
        pending_index_[i] = static_cast<int64_t>(it->second.ids.size());
        it->second.ids.push_back(i);
        it->second.parents.push_back(rows.parents[i] < 0 ? -1 : pending_index_[rows.parents[i]]);
    }
    try {
        for (int32_t sequence : active_)
            cache_.begin(sequence, std::move(own[sequence].ids), std::move(own[sequence].parents));
    } catch (...) {
        drop_pending();
        throw;
    }
}

Batch Executor::make_batch(const ForwardRows& rows, int64_t begin, int64_t end) const {
    Batch batch;
    std::unordered_map<int32_t, size_t> segment_of;
    for (int64_t i = begin; i < end; ++i) {
        const int32_t sequence = rows.sequences[i];
        const auto [it, is_new] = segment_of.try_emplace(sequence, batch.segments.size());
        if (is_new) {
            Segment segment;
            segment.sequence = sequence;
            segment.committed = cache_.length(sequence);
            segment.tree = cache_.pending(sequence).tree;
            batch.segments.push_back(std::move(segment));
        }
        Segment& segment = batch.segments[it->second];
        segment.rows.push_back(i - begin);
        segment.pending.push_back(pending_index_[i]);
        batch.rows.push_back({rows.tokens[i], rows.positions[i], cache_.pending_slot(sequence, pending_index_[i])});
        batch.max_position = std::max<int64_t>(batch.max_position, rows.positions[i]);
    }
    for (Segment& segment : batch.segments) {
        const int64_t tokens =
            segment.tree ? segment.committed : batch.rows[segment.rows.back()].position + 1;
        for (int64_t chunk = 0; chunk * kChunk < tokens; ++chunk)
            segment.pages.push_back(cache_.page(segment.sequence, chunk));
    }
    for (int64_t i = 0; i < rows.num_outputs; ++i)
        if (rows.outputs[i] >= begin && rows.outputs[i] < end) batch.outputs.push_back(rows.outputs[i] - begin);
    return batch;
}

bool Executor::forward(const ForwardRows& rows, float* logits, PollHook hook, void* hook_argument) {
    validate(rows);
    begin_sequences(rows);
    try {
        argmax_.assign(static_cast<size_t>(rows.num_outputs), -1);
        output_offset_ = 0;
        for (int64_t begin = 0; begin < rows.num_rows; begin += kMaxBatchRows) {
            batch_ = make_batch(rows, begin, std::min(rows.num_rows, begin + kMaxBatchRows));
            reserve(rows_of(Domain::rows), rows_of(Domain::outputs));
            base_[program_->result] = logits + output_offset_ * n_vocab();
            if (!run_pass(hook, hook_argument)) {
                drop_pending();
                return false;
            }
            output_offset_ += rows_of(Domain::outputs);
        }
    } catch (...) {
        drop_pending();
        throw;
    }
    return true;
}

}  // namespace specdec

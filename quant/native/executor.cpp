#include "executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace specdec {
namespace {

// Pieces that threads claim one by one, so that a slow thread holds nobody up and a cancellation is seen soon.
constexpr int64_t kPackPanels = 64;
constexpr int64_t kDynamicRows = 32;      // from this many rows on, panels are claimed in pieces
constexpr int64_t kPiecesPerThread = 8;

void range_of(int64_t n, int threads, int thread, int64_t* begin, int64_t* end) {
    *begin = n * thread / threads;
    *end = n * (thread + 1) / threads;
}

}  // namespace

Executor::Executor(std::unique_ptr<Program> program, KvTypes types, int64_t n_ctx, int threads, Isa isa)
    : program_(std::move(program)),
      cache_(program_->layers, types, n_ctx),
      threads_(threads),
      isa_(isa),
      kernels_(kernels_for(isa)),
      row_kernels_(row_kernels_for(isa)),
      attention_kernels_(attention_kernels_for(isa)) {
    if (!program_->finished) throw std::invalid_argument("the program is not finished");
    if (threads < 1 || threads > ThreadPool::kMaxThreads) throw std::invalid_argument("threads out of range");
    int64_t max_head_dim = 32, max_queries = kMaxBlockQueries;
    for (const Step& step : program_->steps) {
        step_shape_.push_back(-1);
        const auto* attention = std::get_if<AttentionStep>(&step);
        if (attention == nullptr) continue;
        const AttentionShape shape{attention->n_head / attention->n_head_kv, attention->n_head_kv,
                                   attention->padded(), attention->window};
        const auto it = std::find(shapes_.begin(), shapes_.end(), shape);
        step_shape_.back() = static_cast<int>(it - shapes_.begin());
        if (it == shapes_.end()) shapes_.push_back(shape);
        max_head_dim = std::max<int64_t>(max_head_dim, shape.head_dim);
        max_queries = std::max(max_queries, shape.heads_per_kv);
    }
    ropes_.resize(program_->ropes.size());
    buffers_.resize(program_->buffers.size());
    base_.resize(program_->buffers.size());
    scratch_.resize(static_cast<size_t>(threads));
    const auto floats = static_cast<size_t>(attention_scratch_size(max_head_dim) +
                                            2 * max_queries * state_size(max_head_dim));
    for (ThreadScratch& s : scratch_) {
        s.floats = Buffer(floats * sizeof(float));
        s.keys = Buffer(kv_chunk_bytes(types.k, max_head_dim));
        s.values = Buffer(kv_chunk_bytes(types.v, max_head_dim));
        s.q.resize(static_cast<size_t>(max_queries));
        s.first.resize(s.q.size());
        s.last.resize(s.q.size());
        s.out.resize(s.q.size());
    }
    maxima_.resize(static_cast<size_t>(threads * ((n_vocab() + kScanBlock - 1) / kScanBlock)));
    program_->allocate_weights();
}

size_t Executor::work_bytes() const {
    size_t bytes = workspace_.size() + states_.size();
    for (const Buffer& buffer : buffers_) bytes += buffer.size();
    for (const ThreadScratch& s : scratch_) bytes += s.floats.size() + s.keys.size() + s.values.size();
    return bytes;
}

bool Executor::pack(int index, const uint8_t* source, size_t bytes, PollHook hook, void* hook_argument) {
    if (index < 0 || index >= static_cast<int>(program_->matrices.size())) throw std::invalid_argument("no such matrix");
    const PackedMatrix& w = program_->matrices[index];
    const WeightTypeInfo& info = weight_type_info(w.type);
    const auto expected = static_cast<size_t>(w.n * (w.k / info.block_size) * info.block_bytes);
    if (bytes != expected)
        throw std::invalid_argument("matrix data has " + std::to_string(bytes) + " bytes, expected " +
                                    std::to_string(expected));
    const int64_t panels = num_panels(w.n);
    uint8_t* destination = program_->packed(index);
    return ThreadPool::shared().run(
        threads_,
        [&](Team& team, int thread) {
            for (int64_t begin; !team.cancelled() && (begin = team.claim() * kPackPanels) < panels; team.poll(thread))
                specdec::pack(w.type, source, w.n, w.k, begin, std::min(panels, begin + kPackPanels), destination);
        },
        hook, hook_argument);
}

void Executor::RopeTable::extend(const RopeSpec& spec, int64_t count) {
    half = static_cast<int64_t>(spec.inv_freq.size());
    if (count <= positions) return;
    count = (count + kChunk - 1) / kChunk * kChunk;
    cosine.reserve(static_cast<size_t>(count * half));
    sine.reserve(static_cast<size_t>(count * half));
    for (; positions < count; ++positions)
        for (double frequency : spec.inv_freq) {
            const double angle = static_cast<double>(positions) * frequency;
            cosine.push_back(static_cast<float>(std::cos(angle) * spec.factor));
            sine.push_back(static_cast<float>(std::sin(angle) * spec.factor));
        }
}

void Executor::reserve(int64_t rows, int64_t outputs) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
        const BufferSpec& spec = program_->buffers[i];
        if (static_cast<int>(i) == program_->result) continue;
        const int64_t count = spec.domain == Domain::rows ? rows : outputs;
        buffers_[i].reserve(static_cast<size_t>(count * spec.width) * sizeof(float));
        base_[i] = buffers_[i].floats();
    }
    if (program_->max_quantized_width > 0) workspace_.reserve(acts_size(rows, program_->max_quantized_width));
}

Activations Executor::activations(int buffer, int64_t k, Domain domain) const {
    return {base_[buffer], static_cast<size_t>(program_->buffers[buffer].width), rows_of(domain), k, workspace_.data()};
}

bool Executor::run_pass(PollHook hook, void* hook_argument) {
    divisions_.clear();
    int64_t states = 0;
    size_t counters = 0;
    for (const AttentionShape& shape : shapes_) {
        divisions_.push_back(divide(batch_, shape, threads_));
        states = std::max(states, divisions_.back().state_floats);
        counters = std::max(counters, divisions_.back().blocks.size() * static_cast<size_t>(shape.n_head_kv));
    }
    states_.reserve(static_cast<size_t>(states) * sizeof(float));
    if (counters > num_unfinished_) {
        unfinished_ = std::make_unique<std::atomic<int32_t>[]>(counters);
        num_unfinished_ = counters;
    }
    for (size_t i = 0; i < num_unfinished_; ++i) unfinished_[i].store(0, std::memory_order_relaxed);
    for (size_t i = 0; i < ropes_.size(); ++i) ropes_[i].extend(program_->ropes[i], batch_.max_position + 1);
    return ThreadPool::shared().run(
        threads_, [this](Team& team, int thread) { participate(team, thread); }, hook, hook_argument);
}

// The barrier after a step. Returns false when the pass was cancelled.
bool Executor::end_step(WorkKind kind, Team& team, int thread) {
    const bool go_on = team.sync();
    if (profiling_ && thread == 0) {
        const auto now = std::chrono::steady_clock::now();
        profile_[static_cast<size_t>(kind)] += std::chrono::duration<double>(now - step_started_).count();
        step_started_ = now;
    }
    return go_on;
}

std::array<double, kNumWorkKinds> Executor::take_profile() {
    profiling_ = true;
    return std::exchange(profile_, {});
}

void Executor::participate(Team& team, int thread) {
    if (profiling_ && thread == 0) step_started_ = std::chrono::steady_clock::now();
    for (size_t i = 0; i < program_->steps.size(); ++i) {
        const Step& step = program_->steps[i];
        if (const auto* row_step = std::get_if<RowStep>(&step)) {
            if (rows_of(row_step->domain) == 0) continue;
            run(*row_step, team, thread);
            if (!end_step(WorkKind::rows, team, thread)) return;
        } else if (const auto* linear = std::get_if<LinearStep>(&step)) {
            if (rows_of(linear->domain) == 0) continue;
            run(*linear, team, thread);
            if (!end_step(WorkKind::linear, team, thread)) return;
        } else {
            const auto& attention = std::get<AttentionStep>(step);
            prepare_heads(attention, team, thread);
            team.poll(thread);
            if (!end_step(WorkKind::heads, team, thread)) return;
            attend(attention, divisions_[step_shape_[i]], team, thread);
            if (!end_step(WorkKind::attention, team, thread)) return;
        }
    }
    scan_outputs(team, thread);
    end_step(WorkKind::scan, team, thread);
}

void Executor::run(const RowStep& step, Team& team, int thread) {
    int64_t begin, end;
    range_of(rows_of(step.domain), team.size(), thread, &begin, &end);
    for (int64_t r = begin; r < end && !team.cancelled(); ++r) run_row(step, r);
}

void Executor::run_row(const RowStep& step, int64_t r) {
    using Kind = RowOp::Kind;
    const RowKernels& k = row_kernels_;
    for (const RowOp& op : step.ops) {
        switch (op.kind) {
            case Kind::embed:
                kernels_.dequantize_row(program_->matrices[op.weight], batch_.rows[r].token, row(op.out, r));
                break;
            case Kind::rms_norm: {
                const std::vector<float>& weight = program_->vectors[op.weight];
                k.rms_norm(row(op.a, r), weight.data(), op.param, row(op.out, r), op.width,
                           static_cast<int64_t>(weight.size()));
                break;
            }
            case Kind::add: k.add(row(op.a, r), row(op.b, r), row(op.out, r), op.width); break;
            case Kind::scale: k.scale(row(op.a, r), op.param, row(op.out, r), op.width); break;
            case Kind::softcap: k.softcap(row(op.a, r), op.param, row(op.out, r), op.width); break;
            case Kind::gated: k.gated(op.activation, row(op.a, r), row(op.b, r), row(op.out, r), op.width); break;
            case Kind::gather:
                std::memcpy(row(op.out, r), row(op.a, batch_.outputs[r]), static_cast<size_t>(op.width) * sizeof(float));
                break;
            case Kind::quantize: kernels_.quantize(activations(op.a, op.width, step.domain), r, r + 1); break;
        }
    }
}

void Executor::run_panels(const LinearStep& step, const LinearPart& part, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const PackedMatrix& w = program_->matrices[part.matrix];
    const float* bias = part.bias < 0 ? nullptr : program_->vectors[part.bias].data();
    kernels_.matmul(w, activations(step.input, w.k, step.domain), base_[part.out],
                    static_cast<size_t>(program_->buffers[part.out].width), begin * kPanelRows,
                    std::min(w.n, end * kPanelRows), bias);
}

void Executor::run_gated_panels(const LinearStep& step, int64_t begin, int64_t end) {
    if (begin >= end) return;
    for (const LinearPart& part : step.parts) run_panels(step, part, begin, end);
    const int64_t first = begin * kPanelRows, last = std::min(program_->matrices[step.parts[0].matrix].n, end * kPanelRows);
    for (int64_t r = 0; r < rows_of(step.domain); ++r)
        row_kernels_.gated(step.activation, row(step.parts[0].out, r) + first, row(step.parts[1].out, r) + first,
                           row(step.gated_out, r) + first, last - first);
}

void Executor::run(const LinearStep& step, Team& team, int thread) {
    // The panels of all matrices in a row; of a gated pair, those of one.
    const bool gated = step.gated_out >= 0;
    const size_t parts = gated ? 1 : step.parts.size();
    int64_t total = 0;
    for (size_t i = 0; i < parts; ++i) total += num_panels(program_->matrices[step.parts[i].matrix].n);
    const auto work = [&](int64_t begin, int64_t end) {
        if (gated) return run_gated_panels(step, begin, end);
        for (size_t i = 0; i < parts && end > 0; ++i) {
            const int64_t panels = num_panels(program_->matrices[step.parts[i].matrix].n);
            run_panels(step, step.parts[i], std::max<int64_t>(begin, 0), std::min(end, panels));
            begin -= panels;
            end -= panels;
        }
    };
    if (rows_of(step.domain) < kDynamicRows) {
        int64_t begin, end;
        range_of(total, team.size(), thread, &begin, &end);
        return work(begin, end);
    }
    const int64_t piece = std::max<int64_t>(1, total / (kPiecesPerThread * team.size()));
    for (int64_t begin; !team.cancelled() && (begin = team.claim() * piece) < total; team.poll(thread))
        work(begin, std::min(total, begin + piece));
}

void Executor::scan_outputs(Team& team, int thread) {
    const int64_t n = n_vocab(), blocks = (n + kScanBlock - 1) / kScanBlock;
    float* maxima = maxima_.data() + thread * blocks;
    int64_t begin, end;
    range_of(rows_of(Domain::outputs), team.size(), thread, &begin, &end);
    for (int64_t r = begin; r < end; ++r) {
        const float* logits = row(program_->result, r);
        const bool finite = row_kernels_.scan_blocks(logits, n, maxima);
        argmax_[output_offset_ + r] = finite ? argmax_from_blocks(logits, n, maxima) : -1;
    }
}

}  // namespace specdec

#include "executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace specdec {
namespace {

constexpr int64_t kPackPanels = 64;             // per item of repacking
constexpr int64_t kManyRows = 32;               // from here on an item takes long: cut finer
constexpr int64_t kItemsPerThread = 8;          // then
constexpr int64_t kItemBytes = int64_t{96} << 10;  // of weights, below: what is worth a claim
constexpr int64_t kMaxSmallItems = 4;           // per thread, below

// Repacks the panels of one matrix.
class PackJob final : public Job {
 public:
    PackJob(const PackedMatrix& matrix, const uint8_t* source, uint8_t* destination)
        : matrix_(matrix), source_(source), destination_(destination) {}
    uint32_t num_steps() const override { return 1; }
    uint32_t items(uint32_t) const override {
        return static_cast<uint32_t>(std::min<int64_t>(ThreadPool::kMaxItems, (panels() + kPackPanels - 1) / kPackPanels));
    }
    void execute(uint32_t, uint32_t item, int) override {
        const int64_t n = items(0);
        pack(matrix_.type, source_, matrix_.n, matrix_.k, panels() * item / n, panels() * (item + 1) / n, destination_);
    }
    bool long_items() const override { return true; }

 private:
    int64_t panels() const { return num_panels(matrix_.n); }
    const PackedMatrix& matrix_;
    const uint8_t* source_;
    uint8_t* destination_;
};

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
    for (size_t i = 0; i < program_->steps.size(); ++i) {
        const Step& step = program_->steps[i];
        step_shape_.push_back(-1);
        step_items_.push_back(1);
        if (std::holds_alternative<RowStep>(step)) phases_.push_back({WorkKind::rows, i});
        if (const auto* linear = std::get_if<LinearStep>(&step)) {
            phases_.push_back({WorkKind::linear, i});
            int64_t bytes = 0;
            for (const LinearPart& part : linear->parts) {
                const PackedMatrix& w = program_->matrices[part.matrix];
                bytes += static_cast<int64_t>(packed_size(w.type, w.n, w.k));
            }
            step_items_.back() = threads * std::clamp<int64_t>(bytes / (threads * kItemBytes), 1, kMaxSmallItems);
        }
        const auto* attention = std::get_if<AttentionStep>(&step);
        if (attention == nullptr) continue;
        phases_.push_back({WorkKind::heads, i});
        phases_.push_back({WorkKind::attention, i});
        const AttentionShape shape{attention->n_head / attention->n_head_kv, attention->n_head_kv,
                                   attention->padded(), attention->window};
        const auto it = std::find(shapes_.begin(), shapes_.end(), shape);
        step_shape_.back() = static_cast<int>(it - shapes_.begin());
        if (it == shapes_.end()) shapes_.push_back(shape);
        max_head_dim = std::max<int64_t>(max_head_dim, shape.head_dim);
        max_queries = std::max(max_queries, shape.heads_per_kv);
    }
    phases_.push_back({WorkKind::scan, 0});
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
    PackJob job(w, source, program_->packed(index));
    return ThreadPool::shared(threads_).run(job, hook, hook_argument);
}

void Executor::pack_rows(int index, int64_t first_row, const uint8_t* source, size_t bytes) {
    if (index < 0 || index >= static_cast<int>(program_->matrices.size())) throw std::invalid_argument("no such matrix");
    const PackedMatrix& w = program_->matrices[index];
    const WeightTypeInfo& info = weight_type_info(w.type);
    const auto row_bytes = static_cast<size_t>(w.k / info.block_size * info.block_bytes);
    const auto rows = static_cast<int64_t>(bytes / row_bytes);
    const bool whole_panels = first_row % kPanelRows == 0 && (rows % kPanelRows == 0 || first_row + rows == w.n);
    if (bytes % row_bytes != 0 || first_row < 0 || first_row + rows > w.n || !whole_panels)
        throw std::invalid_argument("rows to repack do not fill whole panels of the matrix");
    const size_t panel_bytes = packed_size(w.type, kPanelRows, w.k);
    uint8_t* target = program_->packed(index) + static_cast<size_t>(first_row / kPanelRows) * panel_bytes;
    specdec::pack(w.type, source, rows, w.k, 0, num_panels(rows), target);
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

class Executor::Pass final : public Job {
 public:
    explicit Pass(Executor& executor) : executor_(executor) {}
    uint32_t num_steps() const override { return static_cast<uint32_t>(executor_.phases_.size()); }
    uint32_t items(uint32_t step) const override { return executor_.num_items(executor_.phases_[step]); }
    void execute(uint32_t step, uint32_t item, int thread) override {
        const Phase& phase = executor_.phases_[step];
        const int64_t units = executor_.num_units(phase), n = executor_.num_items(phase);
        executor_.execute(phase, units * item / n, units * (item + 1) / n, thread);
    }
    void finished(uint32_t step) override { executor_.finished(executor_.phases_[step]); }
    bool long_items() const override { return executor_.rows_of(Domain::rows) >= kManyRows; }

 private:
    Executor& executor_;
};

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
    if (profiling_) phase_started_ = std::chrono::steady_clock::now();
    Pass pass(*this);
    return ThreadPool::shared(threads_).run(pass, hook, hook_argument);
}

void Executor::finished(const Phase& phase) {
    if (!profiling_) return;
    const auto now = std::chrono::steady_clock::now();
    profile_[static_cast<size_t>(phase.kind)] += std::chrono::duration<double>(now - phase_started_).count();
    phase_started_ = now;
}

std::array<double, kNumWorkKinds> Executor::take_profile() {
    profiling_ = true;
    return std::exchange(profile_, {});
}

int64_t Executor::num_units(const Phase& phase) const {
    if (phase.kind == WorkKind::scan) return rows_of(Domain::outputs);
    const Step& step = program_->steps[phase.step];
    switch (phase.kind) {
        case WorkKind::rows: return rows_of(std::get<RowStep>(step).domain);
        case WorkKind::linear: {
            const auto& linear = std::get<LinearStep>(step);
            return rows_of(linear.domain) == 0 ? 0 : total_panels(linear);
        }
        case WorkKind::heads: return rows_of(Domain::rows) * std::get<AttentionStep>(step).n_head_kv;
        default: return divisions_[step_shape_[phase.step]].num_items;
    }
}

uint32_t Executor::num_items(const Phase& phase) const {
    const int64_t units = num_units(phase);
    int64_t items = kItemsPerThread * threads_;
    if (phase.kind == WorkKind::attention) {
        items = units;
    } else if (phase.kind == WorkKind::linear && rows_of(std::get<LinearStep>(program_->steps[phase.step]).domain) < kManyRows) {
        items = step_items_[phase.step];
    }
    return static_cast<uint32_t>(std::min({units, items, int64_t{ThreadPool::kMaxItems}}));
}

void Executor::execute(const Phase& phase, int64_t begin, int64_t end, int thread) {
    if (phase.kind == WorkKind::scan) {
        for (int64_t i = begin; i < end; ++i) scan_output(i, thread);
        return;
    }
    const Step& step = program_->steps[phase.step];
    if (phase.kind == WorkKind::rows) {
        for (int64_t i = begin; i < end; ++i) run_row(std::get<RowStep>(step), i);
    } else if (phase.kind == WorkKind::linear) {
        run(std::get<LinearStep>(step), begin, end);
    } else {
        const auto& attention = std::get<AttentionStep>(step);
        for (int64_t i = begin; i < end; ++i) {
            if (phase.kind == WorkKind::heads) {
                prepare_head(attention, i / attention.n_head_kv, i % attention.n_head_kv);
            } else {
                attend(attention, divisions_[step_shape_[phase.step]], i, thread);
            }
        }
    }
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

// The panels of all matrices of a step, one after the other; of a gated pair, those of one.
int64_t Executor::total_panels(const LinearStep& step) const {
    const size_t parts = step.gated_out >= 0 ? 1 : step.parts.size();
    int64_t total = 0;
    for (size_t i = 0; i < parts; ++i) total += num_panels(program_->matrices[step.parts[i].matrix].n);
    return total;
}

void Executor::run(const LinearStep& step, int64_t begin, int64_t end) {
    if (step.gated_out >= 0) return run_gated_panels(step, begin, end);
    for (const LinearPart& part : step.parts) {
        const int64_t panels = num_panels(program_->matrices[part.matrix].n);
        run_panels(step, part, std::max<int64_t>(begin, 0), std::min(end, panels));
        begin -= panels;
        end -= panels;
    }
}

void Executor::scan_output(int64_t r, int thread) {
    const int64_t n = n_vocab(), blocks = (n + kScanBlock - 1) / kScanBlock;
    float* maxima = maxima_.data() + thread * blocks;
    const float* logits = row(program_->result, r);
    const bool finite = row_kernels_.scan_blocks(logits, n, maxima);
    argmax_[output_offset_ + r] = finite ? argmax_from_blocks(logits, n, maxima) : -1;
}

}  // namespace specdec

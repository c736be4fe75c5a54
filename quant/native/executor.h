// Runs a program over batches of rows: one call per forward pass, on the shared thread pool.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "batch.h"
#include "kernels.h"
#include "pool.h"
#include "program.h"

namespace specdec {

// One forward pass as the caller states it; all arrays have num_rows elements except outputs.
struct ForwardRows {
    const int32_t* tokens = nullptr;
    const int32_t* positions = nullptr;
    const int32_t* sequences = nullptr;
    const int32_t* parents = nullptr;
    int64_t num_rows = 0;
    const int32_t* outputs = nullptr;
    int64_t num_outputs = 0;
};

// What a pass spends its time on, for the profile.
enum class WorkKind : uint8_t { rows, linear, heads, attention, scan };
constexpr size_t kNumWorkKinds = 5;
constexpr const char* kWorkKindNames[kNumWorkKinds] = {"rows", "linear", "heads", "attention", "scan"};

class Executor {
 public:
    // Takes a finished program. Throws std::invalid_argument.
    Executor(std::unique_ptr<Program> program, KvTypes types, int64_t n_ctx, int threads, Isa isa);

    KvCache& cache() { return cache_; }
    const Program& program() const { return *program_; }
    int64_t n_vocab() const { return program_->buffers[program_->result].width; }
    int threads() const { return threads_; }
    Isa isa() const { return isa_; }

    // Repacks `source` (n rows in the file's format) into matrix `index`. Returns false when cancelled.
    bool pack(int index, const uint8_t* source, size_t bytes, PollHook hook, void* hook_argument);

    // Repacks `source` into rows `first_row`.. of matrix `index`, between forward passes. Whole panels: first_row is a
    // multiple of kPanelRows, and so is the number of rows unless they reach the end. Throws std::invalid_argument.
    void pack_rows(int index, int64_t first_row, const uint8_t* source, size_t bytes);

    // Writes logits [num_outputs][n_vocab]. Returns false when cancelled; then nothing is pending.
    // Throws std::invalid_argument, ContextFull, std::bad_alloc; then nothing is pending either.
    bool forward(const ForwardRows& rows, float* logits, PollHook hook, void* hook_argument);

    // Of the latest forward, per output: the id of the largest logit (lowest on ties), -1 if a value is not finite.
    const std::vector<int64_t>& argmax() const { return argmax_; }
    // Bytes of activations and scratch memory held now.
    size_t work_bytes() const;
    // Seconds by kind of work since the last call, waiting for threads included; the first call switches it on.
    std::array<double, kNumWorkKinds> take_profile();

 private:
    struct ThreadScratch {
        Buffer floats;                      // attention scratch, then two sets of states
        Buffer keys, values;                // a tree row's chunk in logical order
        std::vector<const float*> q;
        std::vector<int64_t> first, last;
        std::vector<float*> out;
    };
    struct RopeTable {
        std::vector<float> cosine, sine;  // [position][half]
        int64_t half = 0, positions = 0;
        void extend(const RopeSpec& spec, int64_t count);
    };
    // What one item of attention works on.
    struct AttentionItem {
        const AttentionStep* step;
        const Division* division;
        const Block* block;
        int64_t head;                     // KV head
        int64_t first_group, end_group;
        int64_t queries;
    };

    void validate(const ForwardRows& rows) const;
    void begin_sequences(const ForwardRows& rows);
    void drop_pending();
    Batch make_batch(const ForwardRows& rows, int64_t begin, int64_t end) const;
    void reserve(int64_t rows, int64_t outputs);
    bool run_pass(PollHook hook, void* hook_argument);

    // A pass is a job of phases; the items of a phase are ranges of its units.
    class Pass;
    struct Phase {
        WorkKind kind;
        size_t step;  // index into Program::steps
    };
    uint32_t num_items(const Phase& phase) const;
    int64_t num_units(const Phase& phase) const;
    void execute(const Phase& phase, int64_t begin, int64_t end, int thread);
    void finished(const Phase& phase);

    void run_row(const RowStep& step, int64_t row);
    int64_t total_panels(const LinearStep& step) const;
    void run(const LinearStep& step, int64_t begin, int64_t end);
    void run_panels(const LinearStep& step, const LinearPart& part, int64_t begin, int64_t end);
    void run_gated_panels(const LinearStep& step, int64_t begin, int64_t end);
    void scan_output(int64_t row, int thread);

    // Attention: heads are rotated and stored in one phase, and attend in the next.
    void prepare_head(const AttentionStep& step, int64_t row, int64_t head);
    void attend(const AttentionStep& step, const Division& division, int64_t number, int thread);
    void attend_item(const AttentionItem& item, int thread);
    void attend_groups(const AttentionItem& item, int64_t first_group, int64_t end_group, float* state, int thread);
    void attend_tree_chunk(const AttentionItem& item, int64_t chunk, float* state, int thread);
    void merge_groups(const AttentionItem& item, int thread);
    void finish_item(const AttentionItem& item, const float* state, int thread);

    int64_t rows_of(Domain domain) const {
        return static_cast<int64_t>(domain == Domain::rows ? batch_.rows.size() : batch_.outputs.size());
    }
    float* row(int buffer, int64_t index) const { return base_[buffer] + index * program_->buffers[buffer].width; }
    Activations activations(int buffer, int64_t k, Domain domain) const;

    std::unique_ptr<Program> program_;
    KvCache cache_;
    int threads_;
    Isa isa_;
    const Kernels& kernels_;
    const RowKernels& row_kernels_;
    const AttentionKernels& attention_kernels_;

    std::vector<AttentionShape> shapes_;
    std::vector<int> step_shape_;  // by step; -1 for steps that are not attention
    std::vector<int64_t> step_items_;  // by step: items of a linear step with few rows
    std::vector<Phase> phases_;
    std::vector<RopeTable> ropes_;

    std::vector<Buffer> buffers_;
    std::vector<float*> base_;
    Buffer workspace_, states_;
    std::vector<ThreadScratch> scratch_;
    std::unique_ptr<std::atomic<int32_t>[]> unfinished_;  // groups by (block, KV head)
    size_t num_unfinished_ = 0;

    // The pass in progress.
    Batch batch_;
    std::vector<Division> divisions_;      // by shape
    std::vector<int32_t> active_;          // sequences of the latest forward
    std::vector<int64_t> pending_index_;   // by row of the forward: its index in its sequence
    std::vector<float> maxima_;            // [thread][blocks of a logits row]
    std::vector<int64_t> argmax_;
    int64_t output_offset_ = 0;

    bool profiling_ = false;
    std::chrono::steady_clock::time_point phase_started_;
    std::array<double, kNumWorkKinds> profile_{};
};

}  // namespace specdec

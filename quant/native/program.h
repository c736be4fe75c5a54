// What a forward pass does, as a list of steps over numbered buffers; built once per model and checked while built.
//
// Between two steps lies a barrier. A step either works on rows independently of each other (RowStep), multiplies one
// input with several matrices (LinearStep), or attends (AttentionStep).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels.h"
#include "kv_cache.h"
#include "memory.h"
#include "row_kernels.h"

namespace specdec {

// Which rows a buffer holds: those of the pass, or only those whose logits were asked for.
enum class Domain : uint8_t { rows, outputs };

struct BufferSpec {
    int64_t width = 0;
    Domain domain = Domain::rows;
};

struct RowOp {
    enum class Kind : uint8_t { embed, rms_norm, add, scale, softcap, gated, gather, quantize };
    Kind kind{};
    int out = -1, a = -1, b = -1;  // buffers; quantize reads a, embed reads token ids
    int weight = -1;               // embed: matrix; rms_norm: vector
    int64_t width = 0;
    float param = 0.0f;  // eps, factor or cap
    GateActivation activation{};
};

struct RowStep {
    Domain domain{};
    std::vector<RowOp> ops;
};

struct LinearPart {
    int matrix = -1, bias = -1, out = -1;
};

// Multiplies `input` (quantized by the step before, where a matrix needs that). With `gated_out` there are two parts of
// equal size, and activation(part 0) * part 1 is computed as their elements become ready.
struct LinearStep {
    Domain domain{};
    int input = -1;
    std::vector<LinearPart> parts;
    int gated_out = -1;
    GateActivation activation{};
};

struct AttentionStep {
    int q = -1, k = -1, v = -1, rotated = -1, out = -1;  // rotated: what becomes of q, heads padded; may be q
    int layer = -1, n_head = 0, n_head_kv = 0, head_dim = 0;
    int64_t padded() const { return padded_head_dim(head_dim); }
    float scale = 1.0f, softcap = 0.0f;
    int64_t window = 0;            // 0: all
    int rope = -1;                 // index into Program::ropes
    int q_norm = -1, k_norm = -1;  // vectors of head_dim elements
    float q_norm_eps = 0.0f, k_norm_eps = 0.0f;
};

using Step = std::variant<RowStep, LinearStep, AttentionStep>;

struct RopeSpec {
    std::vector<double> inv_freq;
    float factor = 1.0f;  // multiplies cosine and sine
};

class Program {
 public:
    // Each returns the number of what it added; all throw std::invalid_argument, naming what does not fit.
    int add_buffer(int64_t width, Domain domain);
    int add_matrix(WeightType type, int64_t n, int64_t k);
    int add_vector(std::vector<float> values);
    int add_rope(RopeSpec rope);
    void add_row_step(RowStep step);
    void add_linear_step(LinearStep step);
    void add_attention_step(AttentionStep step);
    // Checks that the result is complete: output rows, every layer's KV once.
    void finish(int result, int64_t n_vocab);

    // Reserves the weights' memory (after the last add_matrix).
    void allocate_weights();
    bool weights_allocated() const { return allocated_; }
    // Where matrix `index` is packed to.
    uint8_t* packed(int index) { return weights_.data() + offsets_[index]; }
    size_t weight_bytes() const { return weight_bytes_; }
    // Bytes of the buffers of a pass, logits and attention states apart.
    size_t work_bytes(int64_t rows, int64_t outputs) const;

    std::vector<BufferSpec> buffers;
    std::vector<PackedMatrix> matrices;
    std::vector<std::vector<float>> vectors;
    std::vector<RopeSpec> ropes;
    std::vector<Step> steps;
    std::vector<KvLayer> layers;
    int result = -1;
    int64_t max_quantized_width = 0;
    bool finished = false;

 private:
    const BufferSpec& buffer(int index, int64_t min_width, Domain domain, const char* what) const;
    void check_vector(int index, int64_t size, const char* what) const;
    const PackedMatrix& matrix(int index) const;
    void check_row_op(const RowOp& op, Domain domain) const;

    std::vector<size_t> offsets_;
    size_t weight_bytes_ = 0;
    Buffer weights_;
    bool allocated_ = false;
};

}  // namespace specdec

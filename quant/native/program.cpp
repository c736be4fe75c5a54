#include "program.h"

#include <cmath>
#include <stdexcept>

namespace specdec {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 24;

void require(bool ok, const std::string& message) {
    if (!ok) throw std::invalid_argument(message);
}

}  // namespace

const BufferSpec& Program::buffer(int index, int64_t min_width, Domain domain, const char* what) const {
    require(index >= 0 && index < static_cast<int>(buffers.size()), std::string(what) + ": no such buffer");
    const BufferSpec& spec = buffers[index];
    require(spec.width >= min_width, std::string(what) + ": buffer is too narrow");
    require(spec.domain == domain, std::string(what) + ": buffer holds other rows");
    return spec;
}

void Program::check_vector(int index, int64_t size, const char* what) const {
    require(index >= 0 && index < static_cast<int>(vectors.size()), std::string(what) + ": no such vector");
    require(static_cast<int64_t>(vectors[index].size()) == size, std::string(what) + ": vector has another size");
}

const PackedMatrix& Program::matrix(int index) const {
    require(index >= 0 && index < static_cast<int>(matrices.size()), "no such matrix");
    return matrices[index];
}

int Program::add_buffer(int64_t width, Domain domain) {
    require(width >= 1 && width <= kMaxWidth, "buffer width out of range");
    buffers.push_back({width, domain});
    return static_cast<int>(buffers.size()) - 1;
}

int Program::add_matrix(WeightType type, int64_t n, int64_t k) {
    require(!allocated_, "weights are allocated already");
    require(n >= 1 && n <= kMaxWidth && k >= 1 && k <= kMaxWidth, "matrix size out of range");
    require(k % weight_type_info(type).block_size == 0,
            std::string(weight_type_info(type).name) + ": row length " + std::to_string(k) +
                " is not a multiple of the block size");
    matrices.push_back({type, n, k, nullptr});
    offsets_.push_back(weight_bytes_);
    weight_bytes_ += packed_size(type, n, k);
    return static_cast<int>(matrices.size()) - 1;
}

int Program::add_vector(std::vector<float> values) {
    require(!values.empty(), "empty vector");
    vectors.push_back(std::move(values));
    return static_cast<int>(vectors.size()) - 1;
}

int Program::add_rope(RopeSpec rope) {
    require(!rope.inv_freq.empty() && static_cast<int64_t>(rope.inv_freq.size()) <= kMaxHeadDim / 2, "RoPE size");
    for (double f : rope.inv_freq) require(std::isfinite(f), "RoPE frequency is not finite");
    ropes.push_back(std::move(rope));
    return static_cast<int>(ropes.size()) - 1;
}

void Program::check_row_op(const RowOp& op, Domain domain) const {
    using Kind = RowOp::Kind;
    require(op.width >= 1, "row op: width");
    if (op.kind == Kind::quantize) {
        buffer(op.a, op.width, domain, "quantize");
        return;
    }
    buffer(op.out, op.width, domain, "row op output");
    switch (op.kind) {
        case Kind::embed:
            require(domain == Domain::rows && matrix(op.weight).k == op.width, "embed: width differs from the table");
            break;
        case Kind::gather:
            require(domain == Domain::outputs, "gather: output must hold output rows");
            buffer(op.a, op.width, Domain::rows, "gather");
            break;
        case Kind::rms_norm: {
            buffer(op.a, op.width, domain, "rms_norm");
            require(op.weight >= 0 && op.weight < static_cast<int>(vectors.size()), "rms_norm: no such vector");
            require(op.width % static_cast<int64_t>(vectors[op.weight].size()) == 0, "rms_norm: group size");
            break;
        }
        case Kind::add:
        case Kind::gated:
            buffer(op.b, op.width, domain, "row op input");
            [[fallthrough]];
        default: buffer(op.a, op.width, domain, "row op input");
    }
}

void Program::add_row_step(RowStep step) {
    for (const RowOp& op : step.ops) {
        check_row_op(op, step.domain);
        if (op.kind == RowOp::Kind::quantize) max_quantized_width = std::max(max_quantized_width, op.width);
    }
    steps.emplace_back(std::move(step));
}

void Program::add_linear_step(LinearStep step) {
    require(!step.parts.empty(), "linear: no matrices");
    const int64_t k = matrix(step.parts[0].matrix).k;
    buffer(step.input, k, step.domain, "linear input");
    for (const LinearPart& part : step.parts) {
        const PackedMatrix& w = matrix(part.matrix);
        require(w.k == k, "linear: matrices of one step differ in row length");
        buffer(part.out, w.n, step.domain, "linear output");
        require(part.out != step.input, "linear: output overlaps the input");
        if (part.bias != -1) check_vector(part.bias, w.n, "linear bias");
    }
    if (step.gated_out != -1) {
        require(step.parts.size() == 2 && matrix(step.parts[0].matrix).n == matrix(step.parts[1].matrix).n,
                "gated linear: two matrices of equal size");
        require(step.gated_out != step.input, "gated linear: output overlaps the input");
        buffer(step.gated_out, matrix(step.parts[0].matrix).n, step.domain, "gated linear output");
    }
    steps.emplace_back(std::move(step));
}

void Program::add_attention_step(AttentionStep step) {
    require(step.n_head >= 1 && step.n_head_kv >= 1 && step.n_head % step.n_head_kv == 0 && step.n_head <= 4096,
            "attention: head counts");
    require(step.head_dim >= 1 && step.head_dim <= kMaxHeadDim, "attention: head dimension is over 512");
    const int64_t q_width = int64_t{step.n_head} * step.head_dim, kv_width = int64_t{step.n_head_kv} * step.head_dim;
    buffer(step.q, q_width, Domain::rows, "attention q");
    buffer(step.k, kv_width, Domain::rows, "attention k");
    buffer(step.v, kv_width, Domain::rows, "attention v");
    buffer(step.rotated, step.n_head * step.padded(), Domain::rows, "attention rotated q");
    require(step.rotated != step.q || step.padded() == step.head_dim, "attention: padded heads do not fit into q");
    buffer(step.out, q_width, Domain::rows, "attention output");
    require(step.rotated != step.k && step.rotated != step.v && step.out != step.rotated,
            "attention: buffers overlap");
    require(step.window >= 0, "attention: window");
    require(step.softcap >= 0.0f && std::isfinite(step.scale), "attention: soft cap or scale");
    if (step.rope != -1) {
        require(step.rope >= 0 && step.rope < static_cast<int>(ropes.size()), "attention: no such RoPE");
        require(static_cast<int64_t>(ropes[step.rope].inv_freq.size()) * 2 <= step.head_dim,
                "attention: RoPE is wider than the head");
    }
    if (step.q_norm != -1) check_vector(step.q_norm, step.head_dim, "attention q norm");
    if (step.k_norm != -1) check_vector(step.k_norm, step.head_dim, "attention k norm");
    require(step.layer == static_cast<int>(layers.size()), "attention: layers must come in order");
    layers.push_back({step.n_head_kv, step.padded()});
    steps.emplace_back(step);
}

void Program::finish(int result_buffer, int64_t n_vocab) {
    buffer(result_buffer, n_vocab, Domain::outputs, "result");
    require(buffers[result_buffer].width == n_vocab, "result: width is not that of a logits row");
    result = result_buffer;
    finished = true;
}

size_t Program::work_bytes(int64_t rows, int64_t outputs) const {
    size_t bytes = max_quantized_width > 0 ? acts_size(rows, max_quantized_width) : 0;
    for (size_t i = 0; i < buffers.size(); ++i)
        if (static_cast<int>(i) != result)
            bytes += static_cast<size_t>((buffers[i].domain == Domain::rows ? rows : outputs) * buffers[i].width) * 4;
    return bytes;
}

void Program::allocate_weights() {
    weights_ = Buffer(weight_bytes_);
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].data = weights_.data() + offsets_[i];
    allocated_ = true;
}

}  // namespace specdec

// Bindings of the matrix kernels: packed weights and one Kernels object per ISA. They check every shape.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "layout.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specdec {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kMaxDim = int64_t{1} << 28;  // keeps every product of sizes far from overflow

struct FreeAligned {
    void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(kAlignment)); }
};
using AlignedBytes = std::unique_ptr<uint8_t, FreeAligned>;

AlignedBytes aligned_bytes(size_t size) {
    return AlignedBytes(static_cast<uint8_t*>(::operator new(size > 0 ? size : 1, std::align_val_t(kAlignment))));
}

template <class T> nb::object new_array(size_t rows, size_t cols, T** data) {
    *data = new T[rows * cols];
    nb::capsule owner(*data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(*data, {rows, cols}, owner));
}

const WeightTypeInfo& require_type(const std::string& name) {
    const WeightTypeInfo* info = find_weight_type(name);
    if (!info) throw std::invalid_argument("weight type " + name + " has no native kernel");
    return *info;
}

class PackedWeight {
 public:
    PackedWeight(const std::string& type, const Bytes& data, int64_t n, int64_t k) {
        const WeightTypeInfo& info = require_type(type);
        if (n < 1 || k < 1 || n > kMaxDim || k > kMaxDim) throw std::invalid_argument("weight shape is out of range");
        if (k % info.block_size != 0)
            throw std::invalid_argument(type + ": row length " + std::to_string(k) + " is not a multiple of " + std::to_string(info.block_size));
        const int64_t expected = n * (k / info.block_size * info.block_bytes);
        if (static_cast<int64_t>(data.size()) != expected)
            throw std::invalid_argument(type + ": " + std::to_string(data.size()) + " bytes, the shape needs " + std::to_string(expected));
        bytes_ = packed_size(info.type, n, k);
        memory_ = aligned_bytes(bytes_);
        pack(info.type, data.data(), n, k, 0, num_panels(n), memory_.get());
        view_ = {info.type, n, k, memory_.get()};
    }
    const PackedMatrix& view() const { return view_; }
    size_t bytes() const { return bytes_; }

 private:
    AlignedBytes memory_;
    size_t bytes_ = 0;
    PackedMatrix view_;
};

Activations prepare(const Kernels& kernels, const Matrix& x, AlignedBytes& workspace) {
    const auto m = static_cast<int64_t>(x.shape(0)), k = static_cast<int64_t>(x.shape(1));
    if (m > kMaxDim || k > kMaxDim || m * k > int64_t{1} << 40) throw std::invalid_argument("x is too large");
    workspace = aligned_bytes(acts_size(m, k));
    const Activations a{x.data(), static_cast<size_t>(k), m, k, workspace.get()};
    kernels.quantize(a, 0, m);
    return a;
}

nb::object matmul(const Kernels& kernels, const Matrix& x, const PackedWeight& weight, const std::optional<Vector>& bias,
                  int64_t n_begin, std::optional<int64_t> n_end) {
    const PackedMatrix& w = weight.view();
    if (static_cast<int64_t>(x.shape(1)) != w.k)
        throw std::invalid_argument("x has " + std::to_string(x.shape(1)) + " columns, the weight " + std::to_string(w.k));
    if (bias && static_cast<int64_t>(bias->size()) != w.n) throw std::invalid_argument("bias does not have one element per row of the weight");
    const int64_t end = n_end.value_or(w.n);
    if (n_begin < 0 || n_begin > end || end > w.n || n_begin % kPanelRows != 0 || (end % kPanelRows != 0 && end != w.n))
        throw std::invalid_argument("n_begin and n_end must be multiples of 16 (or the end) within the weight's rows");
    AlignedBytes workspace;
    const Activations a = prepare(kernels, x, workspace);
    float* y;
    nb::object out = new_array(x.shape(0), static_cast<size_t>(w.n), &y);
    std::fill(y, y + x.shape(0) * static_cast<size_t>(w.n), 0.0f);
    kernels.matmul(w, a, y, static_cast<size_t>(w.n), n_begin, end, bias ? bias->data() : nullptr);
    return out;
}

nb::object dequantize_rows(const Kernels& kernels, const PackedWeight& weight, const Indices& rows) {
    const PackedMatrix& w = weight.view();
    for (size_t i = 0; i < rows.size(); i++)
        if (rows.data()[i] < 0 || rows.data()[i] >= w.n) throw std::out_of_range("row " + std::to_string(rows.data()[i]) + " is outside the weight");
    float* out;
    nb::object array = new_array(rows.size(), static_cast<size_t>(w.k), &out);
    for (size_t i = 0; i < rows.size(); i++) kernels.dequantize_row(w, rows.data()[i], out + i * static_cast<size_t>(w.k));
    return array;
}

// (q [m][k] int8, scale [m][ceil(k / 32)]) of the activations, for tests.
std::pair<nb::object, nb::object> quantize(const Kernels& kernels, const Matrix& x) {
    AlignedBytes workspace;
    const Activations a = prepare(kernels, x, workspace);
    const auto* blocks = reinterpret_cast<const ActBlock*>(workspace.get());
    const int64_t num_scales = (a.k + kBlock - 1) / kBlock;
    int8_t* q;
    float* scale;
    nb::object q_array = new_array(static_cast<size_t>(a.m), static_cast<size_t>(a.k), &q);
    nb::object scale_array = new_array(static_cast<size_t>(a.m), static_cast<size_t>(num_scales), &scale);
    for (int64_t m = 0; m < a.m; m++) {
        for (int64_t i = 0; i < a.k; i++) q[m * a.k + i] = blocks[i / kSuperBlock * a.m + m].q[i % kSuperBlock];
        for (int64_t b = 0; b < num_scales; b++) scale[m * num_scales + b] = blocks[b / 8 * a.m + m].scale[b % 8];
    }
    return {q_array, scale_array};
}

struct KernelsHandle {
    const Kernels& kernels;
    explicit KernelsHandle(const std::optional<std::string>& isa) : kernels(isa ? kernels_for(parse_isa(*isa)) : active_kernels()) {}
};

}  // namespace

void bind_kernels(nb::module_& m) {
    m.attr("KERNEL_REVISION") = kKernelRevision;
    m.def(
        "available_isas",
        [] {
            std::vector<std::string> names;
            for (Isa isa : available_isas()) names.emplace_back(isa_name(isa));
            return names;
        },
        "Instruction sets of this build that this CPU supports, worst first.");
    m.def(
        "active_isa", [] { return std::string(isa_name(active_isa())); },
        "The instruction set in use: SPECDEC_FORCE_ISA or the best available.");
    m.def(
        "weight_types",
        [] {
            std::vector<std::string> names;
            for (size_t i = 0; i < std::size(kLayouts); i++) names.emplace_back(weight_type_info(static_cast<WeightType>(i)).name);
            return names;
        },
        "Names of the quant types that have kernels.");

    nb::class_<PackedWeight>(m, "PackedWeight", "A weight (n, k) repacked for the kernels.")
        .def(nb::init<const std::string&, const Bytes&, int64_t, int64_t>(), "qtype"_a, "data"_a.noconvert(), "n"_a, "k"_a)
        .def_prop_ro("qtype", [](const PackedWeight& w) { return weight_type_info(w.view().type).name; })
        .def_prop_ro("shape", [](const PackedWeight& w) { return std::pair(w.view().n, w.view().k); })
        .def_prop_ro("nbytes", &PackedWeight::bytes);

    nb::class_<KernelsHandle>(m, "Kernels", "The matrix kernels of one instruction set.")
        .def(nb::init<const std::optional<std::string>&>(), "isa"_a = nb::none())
        .def_prop_ro("isa", [](const KernelsHandle& h) { return isa_name(h.kernels.isa); })
        .def(
            "matmul",
            [](const KernelsHandle& h, const Matrix& x, const PackedWeight& w, const std::optional<Vector>& bias, int64_t n_begin,
               std::optional<int64_t> n_end) { return matmul(h.kernels, x, w, bias, n_begin, n_end); },
            "x"_a.noconvert(), "weight"_a, "bias"_a.noconvert() = nb::none(), "n_begin"_a = 0, "n_end"_a = nb::none(),
            "x @ weight.T + bias, float32 [m, n]; columns outside [n_begin, n_end) are zeros.")
        .def(
            "dequantize_rows",
            [](const KernelsHandle& h, const PackedWeight& w, const Indices& rows) { return dequantize_rows(h.kernels, w, rows); },
            "weight"_a, "rows"_a.noconvert(), "Rows of a packed weight, float32 [len(rows), k].")
        .def(
            "quantize", [](const KernelsHandle& h, const Matrix& x) { return quantize(h.kernels, x); }, "x"_a.noconvert(),
            "What matmul makes of its activations: int8 [m, k] and scales [m, ceil(k / 32)].");
}

}  // namespace specdec

// Binding of the conversion to Q4_0. It checks every size.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "requantize.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace specdec {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void requantize(const std::string& type, const Bytes& blocks, const MutableBytes& out) {
    const SourceInfo* source = find_source(type);
    if (source == nullptr) throw std::invalid_argument("type " + type + " is not converted here");
    const auto size = static_cast<int64_t>(blocks.size()), count = size / source->bytes;
    if (size % source->bytes != 0 || static_cast<int64_t>(out.size()) != count * source->values / kQ4_0Values * kQ4_0Bytes)
        throw std::invalid_argument("to_q4_0: the sizes do not fit together");
    const RequantizeKernels& kernels = requantize_kernels_for(active_isa());
    const uint8_t* from = blocks.data();
    uint8_t* to = out.data();
    bool done;
    {
        nb::gil_scoped_release release;
        done = kernels.to_q4_0(*source, from, count, to);
    }
    if (!done) throw nb::value_error("values that are not finite, or too large");
}

}  // namespace

void bind_requantize(nb::module_& m) {
    m.def("converts_to_q4_0", [](const std::string& type) { return find_source(type) != nullptr; }, "type"_a,
          "Whether to_q4_0 reads this type (quant/types.py).");
    m.def("to_q4_0", requantize, "type"_a, "blocks"_a.noconvert(), "out"_a.noconvert(),
          "Write packed blocks as Q4_0 to `out`; float types in groups of 32 values. ValueError for values that are "
          "not finite or too large.");
}

}  // namespace specdec

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bindings.h"
#include "kernels.h"

namespace nb = nanobind;

namespace specdec {

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
}

}  // namespace specdec

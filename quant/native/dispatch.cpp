#include "kernels.h"

namespace specdec {

#define SPECDEC_DECLARE(name)      \
    namespace name {               \
    extern const Kernels kKernels; \
    }
SPECDEC_FOR_EACH_ISA(SPECDEC_DECLARE)
#undef SPECDEC_DECLARE

const Kernels& kernels_for(Isa isa) {
    switch (isa) {
#define SPECDEC_CASE(name) \
    case Isa::name: return name::kKernels;
        SPECDEC_FOR_EACH_ISA(SPECDEC_CASE)
#undef SPECDEC_CASE
        default: return scalar::kKernels;
    }
}

const Kernels& active_kernels() { return kernels_for(active_isa()); }

}  // namespace specdec

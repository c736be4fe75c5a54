#include "requantize.h"

namespace specdec {
namespace {

constexpr SourceInfo kSources[] = {
    {SourceFormat::F32, "F32", 32, 128},   {SourceFormat::F16, "F16", 32, 64},    {SourceFormat::BF16, "BF16", 32, 64},
    {SourceFormat::Q4_1, "Q4_1", 32, 20},  {SourceFormat::Q5_0, "Q5_0", 32, 22},  {SourceFormat::Q5_1, "Q5_1", 32, 24},
    {SourceFormat::Q8_0, "Q8_0", 32, 34},  {SourceFormat::Q4_K, "Q4_K", 256, 144}, {SourceFormat::Q5_K, "Q5_K", 256, 176},
    {SourceFormat::Q6_K, "Q6_K", 256, 210},
};

}  // namespace

#define SPECDEC_DECLARE(name)                        \
    namespace name {                                 \
    extern const RequantizeKernels kRequantizeKernels; \
    }
SPECDEC_FOR_EACH_ISA(SPECDEC_DECLARE)
#undef SPECDEC_DECLARE

const RequantizeKernels& requantize_kernels_for(Isa isa) {
    switch (isa) {
#define SPECDEC_CASE(name) \
    case Isa::name: return name::kRequantizeKernels;
        SPECDEC_FOR_EACH_ISA(SPECDEC_CASE)
#undef SPECDEC_CASE
        default: return scalar::kRequantizeKernels;
    }
}

const SourceInfo* find_source(std::string_view name) {
    for (const SourceInfo& source : kSources)
        if (name == source.name) return &source;
    return nullptr;
}

}  // namespace specdec

#include "isa.h"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace specdec {
namespace {

constexpr Isa kAllIsas[] = {Isa::scalar, Isa::avx2, Isa::avx_vnni, Isa::avx512, Isa::avx512_vnni, Isa::neon};

bool built(Isa isa) {
#define SPECDEC_CASE(name) \
    if (isa == Isa::name) return true;
    SPECDEC_FOR_EACH_ISA(SPECDEC_CASE)
#undef SPECDEC_CASE
    return false;
}

#if defined(__x86_64__)
struct CpuFeatures {
    bool avx2 = false, avx_vnni = false, avx512 = false, avx512_vnni = false;
};

// Bits of leaf 1 and leaf 7 (Intel SDM, CPUID) together with the register state that the system saves (XCR0).
CpuFeatures detect() {
    CpuFeatures f;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    const bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx) return f;
    unsigned xcr0, xcr0_high;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
    const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
    const unsigned max_subleaf = a;
    f.avx2 = ymm && fma && f16c && (b >> 5 & 1);
    const bool avx512_f_dq_bw_vl = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
    f.avx512 = f.avx2 && zmm && avx512_f_dq_bw_vl;
    f.avx512_vnni = f.avx512 && (c >> 11 & 1);
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx_vnni = f.avx2 && (a >> 4 & 1);
#if defined(SPECDEC_AVX_VNNI_AS_EVEX)
    f.avx_vnni = f.avx512_vnni;
#endif
    return f;
}
#endif

bool cpu_has(Isa isa) {
    if (isa == Isa::scalar) return true;
#if defined(__x86_64__)
    static const CpuFeatures f = detect();
    if (isa == Isa::avx2) return f.avx2;
    if (isa == Isa::avx_vnni) return f.avx_vnni;
    if (isa == Isa::avx512) return f.avx512;
    if (isa == Isa::avx512_vnni) return f.avx512_vnni;
#elif defined(__aarch64__)
#if defined(__linux__)
    constexpr unsigned long kHwcapAsimdDp = 1ul << 20;
    if (isa == Isa::neon) return getauxval(AT_HWCAP) & kHwcapAsimdDp;
#else
    if (isa == Isa::neon) return true;  // every Apple arm64 CPU has dot product instructions
#endif
#endif
    return false;
}

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::scalar: return "scalar";
        case Isa::avx2: return "avx2";
        case Isa::avx_vnni: return "avx_vnni";
        case Isa::avx512: return "avx512";
        case Isa::avx512_vnni: return "avx512_vnni";
        case Isa::neon: return "neon";
    }
    return "?";
}

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
    for (Isa isa : kAllIsas)
        if (built(isa) && cpu_has(isa)) isas.push_back(isa);
    return isas;
}

Isa parse_isa(std::string_view name) {
    for (Isa isa : kAllIsas) {
        if (name != isa_name(isa)) continue;
        if (!built(isa)) throw std::runtime_error("ISA " + std::string(name) + " is not part of this build");
        if (!cpu_has(isa)) throw std::runtime_error("this CPU does not support ISA " + std::string(name));
        return isa;
    }
    throw std::invalid_argument("unknown ISA '" + std::string(name) +
                                "' (known: scalar, avx2, avx_vnni, avx512, avx512_vnni, neon)");
}

Isa active_isa() {
    static const Isa isa = [] {
        const char* forced = std::getenv("SPECDEC_FORCE_ISA");
        return forced && *forced ? parse_isa(forced) : available_isas().back();
    }();
    return isa;
}

}  // namespace specdec

// Compiled once per ISA: everything is in namespace specdec::SPECDEC_ISA.
#include "layout.h"
#include "simd.h"

namespace specdec::SPECDEC_ISA {
namespace {

#include "matmul_float.inl"

void quantize(const Activations&, int64_t, int64_t) {}

void matmul(const PackedMatrix& w, const Activations& a, float* y, size_t ldy, int64_t n_begin, int64_t n_end,
            const float* bias) {
    switch (w.type) {
        case WeightType::F32: matmul_float<LoadF32>(w, a, y, ldy, n_begin, n_end, bias); break;
        case WeightType::F16: matmul_float<LoadF16>(w, a, y, ldy, n_begin, n_end, bias); break;
        case WeightType::BF16: matmul_float<LoadBF16>(w, a, y, ldy, n_begin, n_end, bias); break;
        default: break;
    }
}

void dequantize_row(const PackedMatrix& w, int64_t row, float* out) {
    switch (w.type) {
        case WeightType::F32: dequantize_float<LoadF32>(w, row, out); break;
        case WeightType::F16: dequantize_float<LoadF16>(w, row, out); break;
        case WeightType::BF16: dequantize_float<LoadBF16>(w, row, out); break;
        default: break;
    }
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {Isa::SPECDEC_ISA, quantize, matmul, dequantize_row};

}  // namespace specdec::SPECDEC_ISA

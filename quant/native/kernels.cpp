// The matrix kernels of one ISA. Compiled once per ISA: everything is in namespace specdec::SPECDEC_ISA.
#include "layout.h"
#include "simd.h"

namespace specdec::SPECDEC_ISA {
namespace {

#include "formats.inl"
#include "matmul_float.inl"
#include "matmul_int.inl"
#include "quantize.inl"

using Matmul = void (*)(const PackedMatrix&, const Activations&, float*, size_t, int64_t, int64_t, const float*);
using DequantizeRow = void (*)(const PackedMatrix&, int64_t, float*);

// In the order of WeightType.
constexpr Matmul kMatmul[] = {
    matmul_float<LoadF32>, matmul_float<LoadF16>, matmul_float<LoadBF16>, matmul_blocks<Q4_0>,
    matmul_blocks<Q4_1>,   matmul_blocks<Q5_0>,   matmul_blocks<Q5_1>,    matmul_blocks<Q8_0>,
    matmul_blocks<Q2_K>,   matmul_blocks<Q3_K>,   matmul_blocks<Q4_K>,    matmul_blocks<Q5_K>,
    matmul_blocks<Q6_K>,   matmul_blocks<IQ4_NL>, matmul_blocks<IQ4_XS>,  matmul_blocks<NF4>,
};
constexpr DequantizeRow kDequantizeRow[] = {
    dequantize_float<LoadF32>, dequantize_float<LoadF16>, dequantize_float<LoadBF16>, dequantize_blocks<Q4_0>,
    dequantize_blocks<Q4_1>,   dequantize_blocks<Q5_0>,   dequantize_blocks<Q5_1>,    dequantize_blocks<Q8_0>,
    dequantize_blocks<Q2_K>,   dequantize_blocks<Q3_K>,   dequantize_blocks<Q4_K>,    dequantize_blocks<Q5_K>,
    dequantize_blocks<Q6_K>,   dequantize_blocks<IQ4_NL>, dequantize_blocks<IQ4_XS>,  dequantize_blocks<NF4>,
};

void matmul(const PackedMatrix& w, const Activations& a, float* y, size_t ldy, int64_t n_begin, int64_t n_end,
            const float* bias) {
    kMatmul[static_cast<size_t>(w.type)](w, a, y, ldy, n_begin, n_end, bias);
}

void dequantize_row(const PackedMatrix& w, int64_t row, float* out) {
    kDequantizeRow[static_cast<size_t>(w.type)](w, row, out);
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {Isa::SPECDEC_ISA, quantize, quantize_range, matmul, dequantize_row};

}  // namespace specdec::SPECDEC_ISA

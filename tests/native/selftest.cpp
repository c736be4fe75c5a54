// Compares the matrix kernels of every ISA of this build with the scalar ones, bit for bit, without Python: for cross
// builds under an emulator and for sanitizers. Prints what differs and exits with 1.
//
//     cmake -S . -B build/selftest -DSPECDEC_SELFTEST=ON && cmake --build build/selftest && build/selftest/native_selftest
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "layout.h"

namespace {

using namespace specdec;

std::mt19937 rng(1);
int failures = 0;

// Exactly `size` bytes at an aligned address, so that a sanitizer sees any access past them.
struct Aligned {
    explicit Aligned(size_t size) : data(static_cast<uint8_t*>(::operator new(size, std::align_val_t(kAlignment)))) {}
    ~Aligned() { ::operator delete(data, std::align_val_t(kAlignment)); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    uint8_t* data;
};

// Random bytes in which every float16 and float32 is finite.
std::vector<uint8_t> random_weight(const WeightTypeInfo& info, int64_t n, int64_t k) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n * (k / info.block_size) * info.block_bytes));
    for (uint8_t& b : bytes) {
        b = static_cast<uint8_t>(rng());
        if ((b & 0x7c) == 0x7c) b ^= 0x40;
    }
    return bytes;
}

std::vector<float> random_rows(int64_t m, int64_t k) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(m * k));
    for (float& v : x) v = normal(rng) * (rng() % 100 == 0 ? 30.0f : 1.0f);
    return x;
}

bool same(const float* a, const float* b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (std::memcmp(a + i, b + i, 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
    return true;
}

void expect(bool ok, const Kernels& kernels, const WeightTypeInfo& info, int64_t k, const char* what) {
    if (ok) return;
    failures++;
    std::printf("%s %s k=%lld: %s\n", isa_name(kernels.isa), info.name, static_cast<long long>(k), what);
}

std::vector<float> multiply(const Kernels& kernels, const PackedMatrix& w, const float* x, int64_t m, const float* bias) {
    Aligned workspace(acts_size(m, w.k));
    const Activations a{x, static_cast<size_t>(w.k), m, w.k, workspace.data};
    kernels.quantize(a, 0, m);
    std::vector<float> y(static_cast<size_t>(m * w.n));
    kernels.matmul(w, a, y.data(), static_cast<size_t>(w.n), 0, 16, bias);
    kernels.matmul(w, a, y.data(), static_cast<size_t>(w.n), 16, w.n, bias);
    return y;
}

void check(const Kernels& kernels, const WeightTypeInfo& info, int64_t k) {
    constexpr int64_t kRows = 37, kMaxM = 35;
    const std::vector<uint8_t> source = random_weight(info, kRows, k);
    Aligned packed(packed_size(info.type, kRows, k));
    pack(info.type, source.data(), kRows, k, 1, num_panels(kRows), packed.data);
    pack(info.type, source.data(), kRows, k, 0, 1, packed.data);
    const PackedMatrix w{info.type, kRows, k, packed.data};
    const std::vector<float> x = random_rows(kMaxM, k), bias = random_rows(1, kRows);

    const Kernels& scalar = kernels_for(Isa::scalar);
    const std::vector<float> expected = multiply(scalar, w, x.data(), kMaxM, bias.data());
    for (const int64_t m : {1, 2, 3, 5, 8, 33, 35})
        expect(same(multiply(kernels, w, x.data(), m, bias.data()).data(), expected.data(), static_cast<size_t>(m * kRows)), kernels, info, k,
               "matmul differs from scalar");
    for (const int64_t row : {7, 34})
        expect(same(multiply(kernels, w, x.data() + row * k, 1, bias.data()).data(), expected.data() + row * kRows, kRows), kernels, info, k,
               "a row alone differs from the row in its batch");
    std::vector<float> got(static_cast<size_t>(k)), want(static_cast<size_t>(k));
    for (int64_t row = 0; row < kRows; row++) {
        kernels.dequantize_row(w, row, got.data());
        scalar.dequantize_row(w, row, want.data());
        expect(same(got.data(), want.data(), got.size()), kernels, info, k, "dequantize_row differs from scalar");
    }
}

}  // namespace

int main() {
    for (const Isa isa : available_isas()) {
        for (size_t i = 0; i < std::size(kLayouts); i++) {
            const WeightTypeInfo& info = weight_type_info(static_cast<WeightType>(i));
            for (const int64_t blocks : {1, 3, 9}) check(kernels_for(isa), info, blocks * info.block_size);
            if (info.block_size == 32) check(kernels_for(isa), info, 576);
        }
        std::printf("%s: %s\n", isa_name(isa), failures == 0 ? "same bits as scalar" : "FAILED");
    }
    return failures == 0 ? 0 : 1;
}

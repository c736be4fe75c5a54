#include <algorithm>
#include <stdexcept>
#include <vector>

#include "attention.h"
#include "row_kernels.h"

namespace specdec {

#define SPECDEC_DECLARE(name)                  \
    namespace name {                           \
    extern const RowKernels kRowKernels;       \
    extern const AttentionKernels kAttentionKernels; \
    }
SPECDEC_FOR_EACH_ISA(SPECDEC_DECLARE)
#undef SPECDEC_DECLARE

const RowKernels& row_kernels_for(Isa isa) {
    switch (isa) {
#define SPECDEC_CASE(name) \
    case Isa::name: return name::kRowKernels;
        SPECDEC_FOR_EACH_ISA(SPECDEC_CASE)
#undef SPECDEC_CASE
        default: return scalar::kRowKernels;
    }
}

const AttentionKernels& attention_kernels_for(Isa isa) {
    switch (isa) {
#define SPECDEC_CASE(name) \
    case Isa::name: return name::kAttentionKernels;
        SPECDEC_FOR_EACH_ISA(SPECDEC_CASE)
#undef SPECDEC_CASE
        default: return scalar::kAttentionKernels;
    }
}

int64_t argmax_from_blocks(const float* x, int64_t n, const float* maxima) {
    const int64_t blocks = (n + kScanBlock - 1) / kScanBlock;
    int64_t best = 0;
    for (int64_t b = 1; b < blocks; ++b)
        if (maxima[b] > maxima[best]) best = b;
    int64_t index = best * kScanBlock;
    while (x[index] != maxima[best]) ++index;
    return index;
}

void top_k_from_blocks(const float* x, int64_t n, const float* maxima, int64_t k, int32_t* ids, float* values) {
    // A heap of the k best so far, the worst on top; indices come in ascending order, so a tie never displaces.
    struct Entry {
        float value;
        int32_t id;
    };
    const auto better = [](const Entry& a, const Entry& b) {
        return a.value > b.value || (a.value == b.value && a.id < b.id);
    };
    std::vector<Entry> heap;
    heap.reserve(static_cast<size_t>(k) + 1);
    const auto full = [&] { return static_cast<int64_t>(heap.size()) == k; };
    for (int64_t begin = 0; begin < n; begin += kScanBlock) {
        if (full() && !(maxima[begin / kScanBlock] > heap.front().value)) continue;
        for (int64_t i = begin; i < std::min(n, begin + kScanBlock); ++i) {
            if (full()) {
                if (!(x[i] > heap.front().value)) continue;
                std::pop_heap(heap.begin(), heap.end(), better);
                heap.pop_back();
            }
            heap.push_back({x[i], static_cast<int32_t>(i)});
            std::push_heap(heap.begin(), heap.end(), better);
        }
    }
    std::sort(heap.begin(), heap.end(), better);
    for (size_t i = 0; i < heap.size(); ++i) {
        ids[i] = heap[i].id;
        values[i] = heap[i].value;
    }
}

}  // namespace specdec

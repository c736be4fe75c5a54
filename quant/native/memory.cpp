#include "memory.h"

#include <cstring>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace specdec {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t rounded(size_t bytes) {
    const size_t unit = bytes >= kHugePage ? kHugePage : 4096;
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

#if defined(__unix__) || defined(__APPLE__)
Buffer::Buffer(size_t bytes) : size_(rounded(bytes)) {
    if (bytes == 0) return;
    if (size_ < bytes) throw std::bad_alloc();
    // Over-allocate to start at a multiple of the huge page, then give the ends back.
    const size_t slack = size_ >= kHugePage ? kHugePage : 0;
    void* raw = mmap(nullptr, size_ + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto* begin = static_cast<uint8_t*>(raw);
    data_ = begin;
    if (slack != 0) {
        const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
        data_ = begin + before;
        if (before != 0) munmap(begin, before);
        if (slack != before) munmap(data_ + size_, slack - before);
#if defined(MADV_HUGEPAGE)
        madvise(data_, size_, MADV_HUGEPAGE);
#endif
    }
}

Buffer::~Buffer() {
    if (data_ != nullptr) munmap(data_, size_);
}
#else
Buffer::Buffer(size_t bytes) : size_(rounded(bytes)) {
    if (bytes == 0) return;
    data_ = static_cast<uint8_t*>(::operator new(size_, std::align_val_t(4096)));
    std::memset(data_, 0, size_);
}

Buffer::~Buffer() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t(4096));
}
#endif

}  // namespace specdec

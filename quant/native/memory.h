// Large zeroed buffers, on huge pages where the system has them: weights and KV are read front to back all the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace specdec {

class Buffer {
 public:
    Buffer() = default;
    explicit Buffer(size_t bytes);  // aligned to at least 4096; throws std::bad_alloc
    ~Buffer();
    Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }

    uint8_t* data() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    size_t size() const { return size_; }
    // Makes room for `bytes`; the contents are lost when that moves the buffer.
    void reserve(size_t bytes) {
        if (bytes > size_) *this = Buffer(bytes);
    }

 private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace specdec

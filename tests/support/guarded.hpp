// SPDX-License-Identifier: Apache-2.0
// Memory that notices: an array that ends at an inaccessible page, so that one byte read or written past it is a fault.
#pragma once
#include <cstddef>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace testing {

/// Array of n elements whose last byte lies `misaligned` bytes before a PROT_NONE page; what lies before it is NaN
/// bytes.
template <class T> class guarded {
 public:
  explicit guarded(std::size_t n, std::size_t misaligned = 0) : n_(n) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inside = (n * sizeof(T) + misaligned + page - 1) / page * page;
    bytes_ = inside + page;
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(static_cast<char*>(p) + inside, page, PROT_NONE) != 0) throw std::bad_alloc();
    base_ = static_cast<char*>(p);
    std::memset(base_, 0xff, inside);
    data_ = reinterpret_cast<T*>(base_ + inside - misaligned - n * sizeof(T));
  }
  explicit guarded(const std::vector<T>& from, std::size_t misaligned = 0) : guarded(from.size(), misaligned) {
    if (n_ != 0) std::memcpy(data_, from.data(), n_ * sizeof(T));
  }
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;
  ~guarded() { munmap(base_, bytes_); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return n_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::size_t n_, bytes_ = 0;
  char* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace testing

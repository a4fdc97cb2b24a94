// SPDX-License-Identifier: Apache-2.0
// Memory of the measured calls, and a count of every allocation in the program.
#pragma once
#include <kda/bf16.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace bench {

using index = std::ptrdiff_t;

/// Calls of malloc and its relatives by any thread so far, operator new among them: memory.cpp stands in their place.
long allocations();

/// Pages of an array. States and the buffers that bandwidth is measured on ask for huge ones, as engines do for pools
/// that they allocate once; activations have ordinary ones, since few engines can do better for them.
enum class pages { ordinary, huge };

/// n elements straight from the kernel, zeros at first, aligned to a page.
template <class T> class array {
 public:
  array() = default;
  explicit array(index n, pages p = pages::ordinary) : size_(n) {
    if (n == 0) return;
    void* m = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) throw std::bad_alloc();
    madvise(m, bytes(), p == pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // refused: then it is as it is
    data_ = static_cast<T*>(m);
  }
  array(array&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  array& operator=(array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~array() {
    if (data_ != nullptr) munmap(data_, bytes());
  }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] index size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

 private:
  T* data_ = nullptr;
  index size_ = 0;
};

/// Reproducible numbers between low and high, fast: a full-size batch has hundreds of millions of them.
class numbers {
 public:
  explicit numbers(std::uint32_t seed) : state_(seed * 2654435761u + 1) {}
  float next(float low, float high) {
    state_ = state_ * 1664525u + 1013904223u;
    return low + (high - low) * (static_cast<float>(state_ >> 8) * 0x1p-24f);
  }
  template <class T> void fill(array<T>& x, float low, float high) {
    for (index i = 0; i < x.size(); ++i) x.data()[i] = kda::round_to<T>(next(low, high));
  }

 private:
  std::uint32_t state_;
};
template <class T>
array<T> random_array(index n, std::uint32_t seed, float low, float high, pages p = pages::ordinary) {
  array<T> x(n, p);
  numbers(seed).fill(x, low, high);
  return x;
}

}  // namespace bench

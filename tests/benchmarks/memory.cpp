// SPDX-License-Identifier: Apache-2.0
// malloc and its relatives, counted and passed on to glibc's own. operator new calls malloc.
#include "memory.hpp"

#include <atomic>
#include <cerrno>

namespace {
std::atomic<long> count = 0;
}

long bench::allocations() { return count.load(std::memory_order_relaxed); }

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) { return ++count, __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) { return ++count, __libc_calloc(n, size); }
void* realloc(void* p, std::size_t n) { return ++count, __libc_realloc(p, n); }
void* memalign(std::size_t alignment, std::size_t n) { return ++count, __libc_memalign(alignment, n); }
void* aligned_alloc(std::size_t alignment, std::size_t n) { return ++count, __libc_memalign(alignment, n); }
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
  ++count;
  *p = __libc_memalign(alignment, n);
  return *p == nullptr && n != 0 ? ENOMEM : 0;
}
}

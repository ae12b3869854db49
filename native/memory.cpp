#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace octavo {

namespace {

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

constexpr size_t kHugePageBytes = size_t{2} << 20;

void* map_pages(size_t bytes, int flags) {
  void* address = mmap(nullptr, bytes == 0 ? 1 : bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  return address;
}

}  // namespace

void* map_memory(size_t bytes) {
  void* address = map_pages(bytes, MAP_NORESERVE);
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePageBytes) madvise(address, bytes, MADV_HUGEPAGE);
#endif
  return address;
}

void unmap_memory(void* address, size_t bytes) noexcept {
  if (address != nullptr) munmap(address, bytes == 0 ? 1 : bytes);
}

void* reserve_memory(size_t bytes) { return map_pages(bytes, MAP_NORESERVE); }

void keep_small_pages(void* address, size_t bytes) noexcept {
#ifdef MADV_NOHUGEPAGE
  madvise(address, bytes, MADV_NOHUGEPAGE);
#else
  static_cast<void>(address), static_cast<void>(bytes);
#endif
}

void discard_memory(void* address, size_t bytes) noexcept {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(address) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(address) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace octavo

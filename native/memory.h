// Memory straight from the system: page-aligned, zeroed, resident only where touched.
#pragma once

#include <cstddef>

namespace octavo {

// Throws std::bad_alloc. Large pieces ask for huge pages.
void* map_memory(size_t bytes);
void unmap_memory(void* address, size_t bytes) noexcept;

// Address space without a promise of memory behind it; pages come when written. Throws std::bad_alloc.
void* reserve_memory(size_t bytes);

// Never huge pages here, whatever the system prefers: what is given back in pieces would stay held in them, and what
// was given back could come again when the system joins small pages.
void keep_small_pages(void* address, size_t bytes) noexcept;

// Gives the whole pages inside [address, address + bytes) back; they read as zero afterwards.
void discard_memory(void* address, size_t bytes) noexcept;

}  // namespace octavo

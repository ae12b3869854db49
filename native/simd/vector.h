// The vector type of the instruction set being compiled: F32 (16 floats), Mask (16 flags), Pairs (16 x 2 bf16).
#pragma once

#if defined(OCTAVO_ISA_AVX512)
#include "simd/avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "simd/avx2.h"
#elif defined(OCTAVO_ISA_NEON)
#include "simd/neon.h"
#else
#include "simd/plain.h"
#endif

namespace octavo {
namespace OCTAVO_ISA_NS {

// Lanes past `width` are zeros.
OCTAVO_SIMD F32 load_padded(const float* x, int64_t at, int64_t width) {
  return at + 16 <= width ? load(x + at) : load_n(x + at, width - at);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

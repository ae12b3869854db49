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

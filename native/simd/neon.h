// Sixteen floats in four NEON registers: the compiler's vectors, with Arm's fused multiply-add.
#pragma once

#include <arm_neon.h>

#define OCTAVO_FMA4(x, y, z) vfmaq_f32((z), (x), (y))

#include "simd/plain.h"

#undef OCTAVO_NUM_REGISTERS
#define OCTAVO_NUM_REGISTERS 8  // of 16 floats

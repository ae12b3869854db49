// The layout of a packed panel and of a rounded activation row: the one page that pack, linear and the loops in
// simd/dot_*.h agree on. The same for every instruction set.
//
// A panel is 16 output rows (lanes), interleaved along k so that one 64-byte vector feeds one step of a dot product:
//
//   f32    for each k:              float[16]
//   bf16   for each pair of k:      bf16[16][2]           lane-major pairs; an odd last k is paired with zero
//   int8   for each 32 of k:        uint8[8][16][4]       q + 128; step m holds k = 4m .. 4m+3
//                                   f16 scale[16]
//   int4   for each 32 of k:        uint8[4][16][4]       step m: low nibbles k = 4m .. 4m+3, high ones k = 16+4m ..
//                                   f16 scale[16]
//                                   f16 minimum[16]       only where the weight has minimums
//
// value = scale * q (int8), scale * (q - 8) (int4), scale * q + minimum (int4 with minimums). A group takes exactly
// the bytes of 16 file blocks; missing rows of the last panel are zero in every field but int8's offset.
//
// An activation row:
//
//   f32    float[cols]
//   bf16   bf16[cols], or the same values as float[cols] where the instruction set multiplies no bf16; padded to even
//   int8   for each 32 of k: int8[32], float scale, int32 start = -128 * sum of the int8
//   int4   for each 32 of k: int8[32], float scale, int32 start = -8 * sum, float scale * sum
//
// `start` is where the integer accumulator of a group begins, so the offset of the unsigned weights costs nothing.
#pragma once

#include "weight.h"

namespace octavo {

constexpr int64_t kGroup = 32;

constexpr int64_t kInt8ScaleAt = 512;  // bytes of a panel's group before the scales
constexpr int64_t kInt8GroupBytes = 544;
constexpr int64_t kInt4ScaleAt = 256;
constexpr int64_t kInt4MinAt = 288;
constexpr int64_t kInt4GroupBytes = 288;
constexpr int64_t kInt4MinGroupBytes = 320;

constexpr int64_t kActScaleAt = 32;  // bytes of an activation's group before the scale
constexpr int64_t kActStartAt = 36;
constexpr int64_t kActSumAt = 40;
constexpr int64_t kInt8ActGroupBytes = 40;
constexpr int64_t kInt4ActGroupBytes = 44;

}  // namespace octavo

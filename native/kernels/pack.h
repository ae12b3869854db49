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
//   w8a8   for each 32 of k:        uint8[8][16][4]       q + 128, as in int8; k past the last is 128, a zero
//          once, at the end:        float scale[16]
//
// value = scale * q (int8, w8a8), scale * (q - 8) (int4), scale * q + minimum (int4 with minimums). A group of int8 and
// int4 takes exactly the bytes of 16 file blocks; missing rows of the last panel are zero in every field but the offset.
//
// An activation row:
//
//   f32    float[cols]
//   bf16   bf16[cols], or the same values as float[cols] where the instruction set multiplies no bf16; padded to even
//   int8   for each 32 of k: int8[32], float scale, int32 start = -128 * sum of the int8
//   int4   for each 32 of k: int8[32], float scale, int32 start = -8 * sum, float scale * sum
//   w8a8   int8[cols], padded with zeros to whole 32s; then once float scale, int32 start = -128 * sum of the q, and
//          for each of 4 spikes: int32 where its step lies in a panel, int8[4] the upper digits of that step
//
// A w8a8 row has one scale, and a few values far above the rest would leave the rest no bits. So the scale is made for
// all but the 4 largest: those have q beyond 127, of two digits, q = low + 128 * high. The low ones lie among the others.
//
// `start` is where the integer accumulator of a group (w8a8: of the row) begins, so the offset of the unsigned weights
// costs nothing.
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

constexpr int64_t kW8A8GroupBytes = 512;
constexpr int64_t kW8A8ScaleBytes = 64;  // of a panel, behind the last group

// Columns a w8a8 panel and its activations are padded to.
constexpr int64_t padded_cols(int64_t cols) { return (cols + kGroup - 1) / kGroup * kGroup; }

constexpr int64_t kActScaleAt = 32;  // bytes of an activation's group before the scale
constexpr int64_t kActStartAt = 36;
constexpr int64_t kActSumAt = 40;
constexpr int64_t kInt8ActGroupBytes = 40;
constexpr int64_t kInt4ActGroupBytes = 44;
constexpr int64_t kW8A8ActStartAt = 4;  // bytes behind a w8a8 activation's scale
constexpr int64_t kW8A8ActSpikesAt = 8;
constexpr int kSpikes = 4;
constexpr int64_t kSpikeBytes = 8;
constexpr int kSpikeShift = 7;  // log2 of what a spike's upper digit counts
constexpr float kMaxSpike = 127.0f * 128.0f;
constexpr int64_t kW8A8ActTailBytes = kW8A8ActSpikesAt + kSpikes * kSpikeBytes;  // at padded_cols

// Where the step of column k lies in a panel.
constexpr int64_t w8a8_step_at(int64_t k) { return k / kGroup * kW8A8GroupBytes + k % kGroup / 4 * 64; }

}  // namespace octavo

// Tiles of `linear` in plain C++, for any processor: simple loops over the 16 lanes that a compiler can vectorise.
// Always shipped, and the yardstick the other instruction sets are tested beside.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/pack-inl.h"
#include "kernels/pack.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kFloatTileRows = 8;
constexpr int64_t kIntTileRows = 8;
constexpr bool kPairsOfBF16 = false;  // activations of the bf16 form are rounded to it and kept as float

template <int R>
static inline void store_tile(const float (&sums)[R][16], const TileOut& to) {
  for (int r = 0; r < R; ++r) {
    float* out = to.out + r * to.stride;
    for (int64_t lane = 0; lane < to.lanes; ++lane) {
      out[lane] = to.bias != nullptr ? sums[r][lane] + to.bias[lane] : sums[r][lane];
    }
  }
}

template <int R>
static void tile_f32(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead,
                   const TileOut& to) {
  float sums[R][16] = {};
  for (int64_t k = 0; k < cols; ++k, panel += 64) {
    float weights[16];
    memcpy(weights, panel, 64);
    for (int r = 0; r < R; ++r) {
      const float x = read_f32(act + static_cast<size_t>(r) * stride + 4 * k);
      for (int lane = 0; lane < 16; ++lane) sums[r][lane] += weights[lane] * x;
    }
  }
  store_tile<R>(sums, to);
}

template <int R>
static void tile_bf16(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead,
                   const TileOut& to) {
  float sums[R][16] = {};
  for (int64_t k = 0; k < cols; k += 2, panel += 64) {
    uint32_t pairs[16];
    memcpy(pairs, panel, 64);
    for (int r = 0; r < R; ++r) {
      const uint8_t* x = act + static_cast<size_t>(r) * stride + 4 * k;
      const float first = read_f32(x);
      const float second = read_f32(x + 4);
      for (int lane = 0; lane < 16; ++lane) {
        sums[r][lane] += float_of_bits(pairs[lane] << 16) * first;
        sums[r][lane] += float_of_bits(pairs[lane] & 0xffff0000u) * second;
      }
    }
  }
  store_tile<R>(sums, to);
}

static inline void load_scales(const uint8_t* p, float (&out)[16]) {
  for (int lane = 0; lane < 16; ++lane) out[lane] = read_f16(p + 2 * lane);
}

// sums[lane] += scale of the lane * scale of the activation * (start + sum of w * q over the group).
static inline void add_group(const int16_t (&weights)[kGroup][16], const float (&scales)[16], const uint8_t* act,
                             bool from_start, float (&sums)[16]) {
  int32_t start;
  memcpy(&start, act + kActStartAt, 4);
  int32_t dots[16];
  for (int lane = 0; lane < 16; ++lane) dots[lane] = from_start ? start : 0;
  for (int64_t k = 0; k < kGroup; ++k) {
    const int16_t q = static_cast<int8_t>(act[k]);
    for (int lane = 0; lane < 16; ++lane) dots[lane] += weights[k][lane] * q;
  }
  const float scale = read_f32(act + kActScaleAt);
  for (int lane = 0; lane < 16; ++lane) sums[lane] += static_cast<float>(dots[lane]) * (scales[lane] * scale);
}

template <int R>
static void tile_int8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead,
                   const TileOut& to) {
  float sums[R][16] = {};
  for (int64_t k = 0; k < cols; k += kGroup, panel += kInt8GroupBytes, act += kInt8ActGroupBytes) {
    int16_t weights[kGroup][16];
    for (int64_t i = 0; i < kGroup; ++i) {
      for (int lane = 0; lane < 16; ++lane) weights[i][lane] = panel[64 * (i / 4) + 4 * lane + i % 4];
    }
    float scales[16];
    load_scales(panel + kInt8ScaleAt, scales);
    for (int r = 0; r < R; ++r) add_group(weights, scales, act + static_cast<size_t>(r) * stride, true, sums[r]);
  }
  store_tile<R>(sums, to);
}

template <int R, bool kMin>
static inline void tile_nibbles(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride,
                                const TileOut& to) {
  constexpr int64_t kBytes = kMin ? kInt4MinGroupBytes : kInt4GroupBytes;
  float sums[R][16] = {};
  for (int64_t k = 0; k < cols; k += kGroup, panel += kBytes, act += kInt4ActGroupBytes) {
    int16_t weights[kGroup][16];
    for (int64_t i = 0; i < 16; ++i) {
      for (int lane = 0; lane < 16; ++lane) {
        const uint8_t both = panel[64 * (i / 4) + 4 * lane + i % 4];
        weights[i][lane] = both & 15;
        weights[16 + i][lane] = both >> 4;
      }
    }
    float scales[16];
    float minimums[16];
    load_scales(panel + kInt4ScaleAt, scales);
    if (kMin) load_scales(panel + kInt4MinAt, minimums);
    for (int r = 0; r < R; ++r) {
      const uint8_t* group = act + static_cast<size_t>(r) * stride;
      add_group(weights, scales, group, !kMin, sums[r]);
      if (kMin) {
        const float sum = read_f32(group + kActSumAt);
        for (int lane = 0; lane < 16; ++lane) sums[r][lane] += minimums[lane] * sum;
      }
    }
  }
  store_tile<R>(sums, to);
}

template <int R>
static void tile_int4(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead,
                   const TileOut& to) {
  tile_nibbles<R, false>(panel, cols, act, stride, to);
}

template <int R>
static void tile_int4_min(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead,
                   const TileOut& to) {
  tile_nibbles<R, true>(panel, cols, act, stride, to);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

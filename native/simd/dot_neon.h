// Tiles of `linear` for 64-bit Arm: kernels/pack.h's panels times up to 8 (integers) or 4 (floats) activation rows.
//
// A panel's 16 lanes are four registers, its quarters. Integers: sdot where the compiler may use it, else widening
// multiplications; nibbles are small enough to be signed as they are, int8 weights lose their offset again. Exact: a
// group's sum equals the other instruction sets'.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/pack.h"
#include "simd/dot_each.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Streams of panels a tile of so few rows takes at once.
constexpr int64_t float_streams(int64_t) { return 1; }
constexpr int64_t int_streams(int64_t) { return 1; }

constexpr int64_t kF32TileRows = 4;
constexpr int64_t kBF16TileRows = 4;
constexpr int64_t kIntTileRows = 8;
constexpr int64_t kW8A8TileRows = 8;
constexpr bool kPairsOfBF16 = false;  // activations of the bf16 form are rounded to it and kept as float

// sum[lane] += the four products of the lane's bytes and the activation's four bytes at p.
static inline int32x4_t dot_i8(int32x4_t sum, int8x16_t weights, const uint8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, weights, x);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(x)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(weights, x));
  return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}

static inline float32x4_t load_floats(const uint8_t* p) { return vld1q_f32(reinterpret_cast<const float*>(p)); }

static inline float32x4_t load_f16(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}

static inline float load_float(const uint8_t* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

// sums[4 r + q] is quarter q of row r.
template <int R>
static inline void store_tile(const float32x4_t (&sums)[4 * R], const TileOut& to) {
  float bias[16] = {};
  if (to.bias != nullptr) __builtin_memcpy(bias, to.bias, static_cast<size_t>(to.lanes) * 4);
  each<R>([&](auto r) OCTAVO_FLAT {
    float whole[16];
    each<4>([&](auto q) OCTAVO_FLAT {
      const float32x4_t sum = sums[4 * r + q];
      vst1q_f32(whole + 4 * q, to.bias != nullptr ? vaddq_f32(sum, vld1q_f32(bias + 4 * q)) : sum);
    });
    __builtin_memcpy(to.out + r * to.stride, whole, static_cast<size_t>(to.lanes) * 4);
  });
}

template <int R>
static void tile_f32(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                     const TileOut& to) {
  const uint8_t* row[R];
  float32x4_t sums[4 * R];
  each<R>([&](auto r) OCTAVO_FLAT { row[r] = act + static_cast<size_t>(r) * stride; });
  each<4 * R>([&](auto i) OCTAVO_FLAT { sums[i] = vdupq_n_f32(0.0f); });
  for (int64_t k = 0; k < cols; ++k, panel += 64) {
    ahead.fetch<R <= Ahead::few_rows(Form::kF32)>();
    each<4>([&](auto q) OCTAVO_FLAT {
      const float32x4_t weights = load_floats(panel + 16 * q);
      each<R>([&](auto r) OCTAVO_FLAT {
        sums[4 * r + q] = vfmaq_n_f32(sums[4 * r + q], weights, load_float(row[r] + 4 * k));
      });
    });
  }
  store_tile<R>(sums, to);
}

template <int R>
static void tile_bf16(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  const uint32x4_t odd = vdupq_n_u32(0xffff0000u);
  const uint8_t* row[R];
  float32x4_t sums[4 * R];
  each<R>([&](auto r) OCTAVO_FLAT { row[r] = act + static_cast<size_t>(r) * stride; });
  each<4 * R>([&](auto i) OCTAVO_FLAT { sums[i] = vdupq_n_f32(0.0f); });
  for (int64_t k = 0; k < cols; k += 2, panel += 64) {
    ahead.fetch<R <= Ahead::few_rows(Form::kBF16)>();
    each<4>([&](auto q) OCTAVO_FLAT {
      const uint32x4_t pairs = vreinterpretq_u32_u8(vld1q_u8(panel + 16 * q));
      const float32x4_t first = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
      const float32x4_t second = vreinterpretq_f32_u32(vandq_u32(pairs, odd));
      each<R>([&](auto r) OCTAVO_FLAT {
        sums[4 * r + q] = vfmaq_n_f32(sums[4 * r + q], first, load_float(row[r] + 4 * k));
        sums[4 * r + q] = vfmaq_n_f32(sums[4 * r + q], second, load_float(row[r] + 4 * k + 4));
      });
    });
  }
  store_tile<R>(sums, to);
}

// sum + dot * (scales of the lanes * scale of the activation at `act`).
static inline float32x4_t add_scaled(float32x4_t sum, int32x4_t dot, float32x4_t scales, const uint8_t* act) {
  return vfmaq_f32(sum, vcvtq_f32_s32(dot), vmulq_n_f32(scales, load_float(act + kActScaleAt)));
}

template <int R>
static void tile_int8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  const uint8x16_t offset = vdupq_n_u8(0x80);
  const uint8_t* row[R];
  float32x4_t sums[4 * R];
  each<R>([&](auto r) OCTAVO_FLAT { row[r] = act + static_cast<size_t>(r) * stride; });
  each<4 * R>([&](auto i) OCTAVO_FLAT { sums[i] = vdupq_n_f32(0.0f); });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kInt8GroupBytes) {
    ahead.fetch<R <= Ahead::few_rows(Form::kInt8)>();
    each<4>([&](auto q) OCTAVO_FLAT {
      int32x4_t dots[R];
      each<R>([&](auto r) OCTAVO_FLAT { dots[r] = vdupq_n_s32(0); });
      each<8>([&](auto step) OCTAVO_FLAT {
        const int8x16_t weights = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(panel + 64 * step + 16 * q), offset));
        each<R>([&](auto r) OCTAVO_FLAT { dots[r] = dot_i8(dots[r], weights, row[r] + 4 * step); });
      });
      const float32x4_t scales = load_f16(panel + kInt8ScaleAt + 8 * q);
      each<R>([&](auto r) OCTAVO_FLAT { sums[4 * r + q] = add_scaled(sums[4 * r + q], dots[r], scales, row[r]); });
    });
    each<R>([&](auto r) OCTAVO_FLAT { row[r] += kInt8ActGroupBytes; });
  }
  store_tile<R>(sums, to);
}

template <int R, bool kMin>
static inline void tile_nibbles(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                                const TileOut& to) {
  constexpr int64_t kBytes = kMin ? kInt4MinGroupBytes : kInt4GroupBytes;
  const uint8x16_t nibble = vdupq_n_u8(15);
  const uint8_t* row[R];
  float32x4_t sums[4 * R];
  each<R>([&](auto r) OCTAVO_FLAT { row[r] = act + static_cast<size_t>(r) * stride; });
  each<4 * R>([&](auto i) OCTAVO_FLAT { sums[i] = vdupq_n_f32(0.0f); });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kBytes) {
    ahead.fetch<R <= Ahead::few_rows(Form::kInt4)>();
    each<4>([&](auto q) OCTAVO_FLAT {
      int32x4_t dots[R];
      each<R>([&](auto r) OCTAVO_FLAT {
        int32_t start;
        __builtin_memcpy(&start, row[r] + kActStartAt, 4);
        dots[r] = vdupq_n_s32(kMin ? 0 : start);
      });
      each<4>([&](auto step) OCTAVO_FLAT {
        const uint8x16_t both = vld1q_u8(panel + 64 * step + 16 * q);
        const int8x16_t first = vreinterpretq_s8_u8(vandq_u8(both, nibble));
        const int8x16_t second = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        each<R>([&](auto r) OCTAVO_FLAT {
          dots[r] = dot_i8(dots[r], first, row[r] + 4 * step);
          dots[r] = dot_i8(dots[r], second, row[r] + 16 + 4 * step);
        });
      });
      const float32x4_t scales = load_f16(panel + kInt4ScaleAt + 8 * q);
      each<R>([&](auto r) OCTAVO_FLAT { sums[4 * r + q] = add_scaled(sums[4 * r + q], dots[r], scales, row[r]); });
      if (kMin) {
        const float32x4_t minimums = load_f16(panel + kInt4MinAt + 8 * q);
        each<R>([&](auto r) OCTAVO_FLAT {
          sums[4 * r + q] = vfmaq_n_f32(sums[4 * r + q], minimums, load_float(row[r] + kActSumAt));
        });
      }
    });
    each<R>([&](auto r) OCTAVO_FLAT { row[r] += kInt4ActGroupBytes; });
  }
  store_tile<R>(sums, to);
}

template <int R>
static void tile_int4(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  tile_nibbles<R, false>(panel, cols, act, stride, ahead, to);
}

template <int R>
static void tile_int4_min(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                          const TileOut& to) {
  tile_nibbles<R, true>(panel, cols, act, stride, ahead, to);
}

// A span of k at a time, one quarter of the lanes after the other: the span stays in the first cache between them.
template <int R>
static void tile_w8a8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  constexpr int64_t kSpan = 8 * kGroup;
  const uint8x16_t offset = vdupq_n_u8(0x80);
  const int64_t end = padded_cols(cols);
  const uint8_t* first = panel;
  const uint8_t* scales = panel + end / kGroup * kW8A8GroupBytes;
  int32x4_t whole[4 * R];
  each<4 * R>([&](auto i) OCTAVO_FLAT { whole[i] = vdupq_n_s32(0); });
  for (int64_t k = 0; k < end; k += kSpan) {
    const int64_t groups = (end - k < kSpan ? end - k : kSpan) / kGroup;
    each<4>([&](auto q) OCTAVO_FLAT {
      int32x4_t dots[R];
      each<R>([&](auto r) OCTAVO_FLAT { dots[r] = whole[4 * r + q]; });
      const uint8_t* from = panel + 16 * q;
      const uint8_t* x = act + k;
      for (int64_t group = 0; group < groups; ++group, from += kW8A8GroupBytes, x += kGroup) {
        if (q == 0) ahead.fetch<R <= Ahead::few_rows(Form::kW8A8)>();
        each<8>([&](auto step) OCTAVO_FLAT {
          const int8x16_t weights = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + 64 * step), offset));
          each<R>([&](auto r) OCTAVO_FLAT {
            dots[r] = dot_i8(dots[r], weights, x + static_cast<size_t>(r) * stride + 4 * step);
          });
        });
      }
      each<R>([&](auto r) OCTAVO_FLAT { whole[4 * r + q] = dots[r]; });
    });
    panel += groups * kW8A8GroupBytes;
  }
  float32x4_t sums[4 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    const uint8_t* tail = act + static_cast<size_t>(r) * stride + end;
    const float scale = load_float(tail);
    each<4>([&](auto q) OCTAVO_FLAT {
      int32x4_t high = vdupq_n_s32(0);
      each<kSpikes>([&](auto i) OCTAVO_FLAT {
        const uint8_t* spike = spike_of(tail, i);
        const uint8x16_t weights = veorq_u8(vld1q_u8(step_of(spike, first) + 16 * q), offset);
        high = dot_i8(high, vreinterpretq_s8_u8(weights), spike + 4);
      });
      whole[4 * r + q] = vaddq_s32(whole[4 * r + q], vshlq_n_s32(high, kSpikeShift));
      sums[4 * r + q] = vmulq_f32(vcvtq_f32_s32(whole[4 * r + q]), vmulq_n_f32(load_floats(scales + 16 * q), scale));
    });
  });
  store_tile<R>(sums, to);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

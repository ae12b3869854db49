// Tiles of `linear` in plain C++, for any processor: four vectors of four lanes. Always shipped, and the yardstick the
// other instruction sets are tested beside.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/pack-inl.h"
#include "kernels/pack.h"
#include "simd/dot_each.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Streams of panels a tile of so few rows takes at once.
constexpr int64_t float_streams(int64_t) { return 1; }
constexpr int64_t int_streams(int64_t) { return 1; }

constexpr int64_t kF32TileRows = 2;
constexpr int64_t kBF16TileRows = 2;
constexpr int64_t kIntTileRows = 8;   // more rows share one unpacking of the weights
constexpr int64_t kW8A8TileRows = 8;
constexpr bool kPairsOfBF16 = false;  // activations of the bf16 form are rounded to it and kept as float

// The compiler's own vectors: left to loops over arrays, gcc 12 finds a tenth of the speed.
typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

struct Lanes {
  Four a, b, c, d;
};

static inline Four load_four(const uint8_t* p) {
  Four out;
  memcpy(&out, p, 16);
  return out;
}

static inline FourInts load_ints(const uint8_t* p) {
  FourInts out;
  memcpy(&out, p, 16);
  return out;
}

// Four lanes of bf16 pairs: the even ones of k as floats, and the odd ones.
static inline Four even_floats(const uint8_t* p) { return reinterpret_cast<Four>(load_ints(p) << 16); }
static inline Four odd_floats(const uint8_t* p) {
  return reinterpret_cast<Four>(load_ints(p) & static_cast<int32_t>(0xffff0000u));
}

// The bits of `mask` of each of 16 lanes' four bytes, `shift` bits up, as floats [16].
static inline void unpack_bits(const uint8_t* p, int shift, int32_t mask, float* out) {
  for (int i = 0; i < 4; ++i) {
    const Four values = __builtin_convertvector((load_ints(p + 16 * i) >> shift) & mask, Four);
    memcpy(out + 4 * i, &values, 16);
  }
}

static inline Lanes load_lanes(const void* from) {
  const uint8_t* p = static_cast<const uint8_t*>(from);
  return {load_four(p), load_four(p + 16), load_four(p + 32), load_four(p + 48)};
}

static inline Lanes same_lanes(float x) {
  const Four same = {x, x, x, x};
  return {same, same, same, same};
}

// sum + weights * x
static inline Lanes add_product(const Lanes& sum, const Lanes& weights, float x) {
  const Four factor = {x, x, x, x};
  return {sum.a + weights.a * factor, sum.b + weights.b * factor, sum.c + weights.c * factor,
          sum.d + weights.d * factor};
}

static inline void store_lanes(const Lanes& sum, int64_t row, const TileOut& to) {
  float whole[16];
  memcpy(whole, &sum, 64);
  float* out = to.out + row * to.stride;
  for (int64_t lane = 0; lane < to.lanes; ++lane) {
    out[lane] = to.bias != nullptr ? whole[lane] + to.bias[lane] : whole[lane];
  }
}

template <int R>
static void tile_f32(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead, const TileOut& to) {
  Lanes sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = same_lanes(0.0f); });
  for (int64_t k = 0; k < cols; ++k, panel += 64) {
    const Lanes weights = load_lanes(panel);
    each<R>([&](auto r) OCTAVO_FLAT {
      sums[r] = add_product(sums[r], weights, read_f32(act + static_cast<size_t>(r) * stride + 4 * k));
    });
  }
  each<R>([&](auto r) OCTAVO_FLAT { store_lanes(sums[r], r, to); });
}

template <int R>
static void tile_bf16(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead, const TileOut& to) {
  Lanes sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = same_lanes(0.0f); });
  for (int64_t k = 0; k < cols; k += 2, panel += 64) {
    const Lanes even = {even_floats(panel), even_floats(panel + 16), even_floats(panel + 32), even_floats(panel + 48)};
    const Lanes odd = {odd_floats(panel), odd_floats(panel + 16), odd_floats(panel + 32), odd_floats(panel + 48)};
    each<R>([&](auto r) OCTAVO_FLAT {
      const uint8_t* x = act + static_cast<size_t>(r) * stride + 4 * k;
      sums[r] = add_product(sums[r], even, read_f32(x));
      sums[r] = add_product(sums[r], odd, read_f32(x + 4));
    });
  }
  each<R>([&](auto r) OCTAVO_FLAT { store_lanes(sums[r], r, to); });
}

static inline Lanes load_scales(const uint8_t* p) {
  float scales[16];
  for (int lane = 0; lane < 16; ++lane) scales[lane] = read_f16(p + 2 * lane);
  return load_lanes(scales);
}

// One group of a row: sum + scales * scale of the activation * (start + sum of w * q). The integers are held as
// floats, which add them exactly: 32 * 255 * 127 < 2^24.
static inline Lanes add_group(const float (&weights)[kGroup][16], const Lanes& scales, const uint8_t* act,
                              bool from_start, const Lanes& sum) {
  int32_t start;
  memcpy(&start, act + kActStartAt, 4);
  Lanes dots = same_lanes(from_start ? static_cast<float>(start) : 0.0f);
  for (int64_t k = 0; k < kGroup; ++k) {
    dots = add_product(dots, load_lanes(weights[k]), static_cast<float>(static_cast<int8_t>(act[k])));
  }
  const float x = read_f32(act + kActScaleAt);
  const Four factor = {x, x, x, x};
  return {sum.a + dots.a * (scales.a * factor), sum.b + dots.b * (scales.b * factor),
          sum.c + dots.c * (scales.c * factor), sum.d + dots.d * (scales.d * factor)};
}

template <int R>
static void tile_int8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead, const TileOut& to) {
  Lanes sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = same_lanes(0.0f); });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kInt8GroupBytes, act += kInt8ActGroupBytes) {
    float weights[kGroup][16];
    for (int i = 0; i < kGroup; ++i) unpack_bits(panel + 64 * (i / 4), 8 * (i % 4), 255, weights[i]);
    const Lanes scales = load_scales(panel + kInt8ScaleAt);
    each<R>([&](auto r) OCTAVO_FLAT {
      sums[r] = add_group(weights, scales, act + static_cast<size_t>(r) * stride, true, sums[r]);
    });
  }
  each<R>([&](auto r) OCTAVO_FLAT { store_lanes(sums[r], r, to); });
}

template <int R, bool kMin>
static inline void tile_nibbles(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride,
                                const TileOut& to) {
  constexpr int64_t kBytes = kMin ? kInt4MinGroupBytes : kInt4GroupBytes;
  Lanes sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = same_lanes(0.0f); });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kBytes, act += kInt4ActGroupBytes) {
    float weights[kGroup][16];
    for (int i = 0; i < 16; ++i) {
      unpack_bits(panel + 64 * (i / 4), 8 * (i % 4), 15, weights[i]);
      unpack_bits(panel + 64 * (i / 4), 8 * (i % 4) + 4, 15, weights[16 + i]);
    }
    const Lanes scales = load_scales(panel + kInt4ScaleAt);
    const Lanes minimums = kMin ? load_scales(panel + kInt4MinAt) : same_lanes(0.0f);
    each<R>([&](auto r) OCTAVO_FLAT {
      const uint8_t* group = act + static_cast<size_t>(r) * stride;
      sums[r] = add_group(weights, scales, group, !kMin, sums[r]);
      if (kMin) sums[r] = add_product(sums[r], minimums, read_f32(group + kActSumAt));
    });
  }
  each<R>([&](auto r) OCTAVO_FLAT { store_lanes(sums[r], r, to); });
}

template <int R>
static void tile_int4(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead, const TileOut& to) {
  tile_nibbles<R, false>(panel, cols, act, stride, to);
}

template <int R>
static void tile_int4_min(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead,
                          const TileOut& to) {
  tile_nibbles<R, true>(panel, cols, act, stride, to);
}

// The products of a group, added up as floats, which is exact (see add_group), then onto the row's integers.
static inline void add_integers(const float (&weights)[kGroup][16], const uint8_t* act, FourInts* sums) {
  Lanes dots = same_lanes(0.0f);
  for (int64_t k = 0; k < kGroup; ++k) {
    dots = add_product(dots, load_lanes(weights[k]), static_cast<float>(static_cast<int8_t>(act[k])));
  }
  sums[0] += __builtin_convertvector(dots.a, FourInts);
  sums[1] += __builtin_convertvector(dots.b, FourInts);
  sums[2] += __builtin_convertvector(dots.c, FourInts);
  sums[3] += __builtin_convertvector(dots.d, FourInts);
}

// A spike's upper digit times its column, onto the row's integers.
static inline void add_spike(const uint8_t* step, const uint8_t* digits, FourInts* sums) {
  for (int j = 0; j < 4; ++j) {
    const int32_t digit = static_cast<int8_t>(digits[j]) * (1 << kSpikeShift);
    if (digit == 0) continue;
    for (int i = 0; i < 4; ++i) sums[i] += ((load_ints(step + 16 * i) >> (8 * j)) & 255) * digit;
  }
}

template <int R>
static void tile_w8a8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead, const TileOut& to) {
  const int64_t end = padded_cols(cols);
  const uint8_t* first = panel;
  FourInts dots[R][4] = {};
  for (int64_t k = 0; k < end; k += kGroup, panel += kW8A8GroupBytes) {
    float weights[kGroup][16];
    for (int i = 0; i < kGroup; ++i) unpack_bits(panel + 64 * (i / 4), 8 * (i % 4), 255, weights[i]);
    each<R>([&](auto r) OCTAVO_FLAT {
      add_integers(weights, act + static_cast<size_t>(r) * stride + k, dots[r]);
    });
  }
  each<R>([&](auto r) OCTAVO_FLAT {
    const uint8_t* tail = act + static_cast<size_t>(r) * stride + end;
    int32_t start;
    memcpy(&start, tail + kW8A8ActStartAt, 4);
    const float scale = read_f32(tail);
    for (int i = 0; i < kSpikes; ++i) add_spike(step_of(spike_of(tail, i), first), spike_of(tail, i) + 4, dots[r]);
    Four sums[4];
    for (int i = 0; i < 4; ++i) {
      sums[i] = __builtin_convertvector(dots[r][i] + start, Four) * (load_four(panel + 16 * i) * scale);
    }
    store_lanes({sums[0], sums[1], sums[2], sums[3]}, r, to);
  });
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

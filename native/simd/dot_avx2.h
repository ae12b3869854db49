// Tiles of `linear` for AVX2 with FMA: kernels/pack.h's panels times up to 8 (integers) or 4 (floats) activation rows.
//
// A panel's 16 lanes are two registers, its halves. int4: vpmaddubsw of unsigned nibbles and signed activations; eight
// steps of at most 2 * 15 * 127 stay below 2^15, so a group adds up in 16 bits and widens once. int8: 255 * 127 * 2
// would not, so the weights' signs move to the activations (|w| <= 128: at most 32,512) and every step widens. All
// of it exact: a group's sum equals the other instruction sets'.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/pack.h"
#include "simd/dot_each.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kFloatTileRows = 4;
constexpr int64_t kIntTileRows = 8;
constexpr bool kPairsOfBF16 = false;  // activations of the bf16 form are rounded to it and kept as float

static inline __m256i broadcast_i32(const uint8_t* p) {
  int32_t value;
  __builtin_memcpy(&value, p, 4);
  return _mm256_set1_epi32(value);
}

// The steps of a dot product, with the activation's four bytes at p broadcast. Written out because gcc 12 hoists the
// broadcasts of a whole group above them and spills nearly all (half the speed).

// 16-bit sums += pairs of unsigned weights times signed activations.
static inline void dot_u4(__m256i& sum, __m256i weights, const uint8_t* p) {
  __m256i x;
  asm("vpbroadcastd %3, %1\n\tvpmaddubsw %1, %2, %1\n\tvpaddw %1, %0, %0"
      : "+x"(sum), "=&x"(x)
      : "x"(weights), "m"(*reinterpret_cast<const int32_t*>(p)));
}

// 32-bit sums += fours of signed weights (and their sizes) times signed activations.
static inline void dot_i8(__m256i& sum, __m256i weights, __m256i sizes, __m256i ones, const uint8_t* p) {
  __m256i x;
  asm("vpbroadcastd %5, %1\n\tvpsignb %2, %1, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %4, %1, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(sum), "=&x"(x)
      : "x"(weights), "x"(sizes), "x"(ones), "m"(*reinterpret_cast<const int32_t*>(p)));
}

static inline __m256 broadcast_f32(const uint8_t* p) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
}

static inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

static inline __m256 load_floats(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }

static inline __m256 load_f16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// sums[2 r] and sums[2 r + 1] are the halves of row r.
template <int R>
static inline void store_tile(const __m256 (&sums)[2 * R], const TileOut& to) {
  alignas(32) float bias[16] = {};
  if (to.bias != nullptr) __builtin_memcpy(bias, to.bias, static_cast<size_t>(to.lanes) * 4);
  each<R>([&](auto r) OCTAVO_FLAT {
    float* out = to.out + r * to.stride;
    __m256 low = sums[2 * r];
    __m256 high = sums[2 * r + 1];
    if (to.bias != nullptr) {
      low = _mm256_add_ps(low, _mm256_load_ps(bias));
      high = _mm256_add_ps(high, _mm256_load_ps(bias + 8));
    }
    if (to.lanes == 16) {
      _mm256_storeu_ps(out, low);
      _mm256_storeu_ps(out + 8, high);
    } else {
      alignas(32) float whole[16];
      _mm256_store_ps(whole, low);
      _mm256_store_ps(whole + 8, high);
      __builtin_memcpy(out, whole, static_cast<size_t>(to.lanes) * 4);
    }
  });
}

template <int R>
static void tile_f32(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                     const TileOut& to) {
  const uint8_t* row[R];
  __m256 sums[2 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    row[r] = act + static_cast<size_t>(r) * stride;
    sums[2 * r] = sums[2 * r + 1] = _mm256_setzero_ps();
  });
  for (int64_t k = 0; k < cols; ++k, panel += 64) {
    ahead.fetch();
    const __m256 low = load_floats(panel);
    const __m256 high = load_floats(panel + 32);
    each<R>([&](auto r) OCTAVO_FLAT {
      const __m256 x = broadcast_f32(row[r] + 4 * k);
      sums[2 * r] = _mm256_fmadd_ps(low, x, sums[2 * r]);
      sums[2 * r + 1] = _mm256_fmadd_ps(high, x, sums[2 * r + 1]);
    });
  }
  store_tile<R>(sums, to);
}

template <int R>
static void tile_bf16(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const uint8_t* row[R];
  __m256 sums[2 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    row[r] = act + static_cast<size_t>(r) * stride;
    sums[2 * r] = sums[2 * r + 1] = _mm256_setzero_ps();
  });
  for (int64_t k = 0; k < cols; k += 2, panel += 64) {
    ahead.fetch();
    const __m256i low = load_bytes(panel);
    const __m256i high = load_bytes(panel + 32);
    const __m256 low0 = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
    const __m256 high0 = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
    each<R>([&](auto r) OCTAVO_FLAT {
      const __m256 x = broadcast_f32(row[r] + 4 * k);
      sums[2 * r] = _mm256_fmadd_ps(low0, x, sums[2 * r]);
      sums[2 * r + 1] = _mm256_fmadd_ps(high0, x, sums[2 * r + 1]);
    });
    const __m256 low1 = _mm256_castsi256_ps(_mm256_and_si256(low, odd));
    const __m256 high1 = _mm256_castsi256_ps(_mm256_and_si256(high, odd));
    each<R>([&](auto r) OCTAVO_FLAT {
      const __m256 x = broadcast_f32(row[r] + 4 * k + 4);
      sums[2 * r] = _mm256_fmadd_ps(low1, x, sums[2 * r]);
      sums[2 * r + 1] = _mm256_fmadd_ps(high1, x, sums[2 * r + 1]);
    });
  }
  store_tile<R>(sums, to);
}

// sum += dot * (scales of the lanes * scale of the activation at `act`).
static inline void add_scaled(__m256& sum, __m256i dot, __m256 scales, const uint8_t* act) {
  const __m256 scale = _mm256_mul_ps(scales, broadcast_f32(act + kActScaleAt));
  sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
}

template <int R>
static void tile_int8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
  const uint8_t* row[R];
  __m256 sums[2 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    row[r] = act + static_cast<size_t>(r) * stride;
    sums[2 * r] = sums[2 * r + 1] = _mm256_setzero_ps();
  });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kInt8GroupBytes) {
    ahead.fetch();
    each<2>([&](auto half) OCTAVO_FLAT {
      __m256i dots[R];
      each<R>([&](auto r) OCTAVO_FLAT { dots[r] = _mm256_setzero_si256(); });
      each<8>([&](auto step) OCTAVO_FLAT {
        const __m256i weights = _mm256_xor_si256(load_bytes(panel + 64 * step + 32 * half), offset);
        const __m256i sizes = _mm256_abs_epi8(weights);
        each<R>([&](auto r) OCTAVO_FLAT { dot_i8(dots[r], weights, sizes, ones, row[r] + 4 * step); });
      });
      const __m256 scales = load_f16(panel + kInt8ScaleAt + 16 * half);
      each<R>([&](auto r) OCTAVO_FLAT { add_scaled(sums[2 * r + half], dots[r], scales, row[r]); });
    });
    each<R>([&](auto r) OCTAVO_FLAT { row[r] += kInt8ActGroupBytes; });
  }
  store_tile<R>(sums, to);
}

template <int R, bool kMin>
static inline void tile_nibbles(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                                const TileOut& to) {
  constexpr int64_t kBytes = kMin ? kInt4MinGroupBytes : kInt4GroupBytes;
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  const uint8_t* row[R];
  __m256 sums[2 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    row[r] = act + static_cast<size_t>(r) * stride;
    sums[2 * r] = sums[2 * r + 1] = _mm256_setzero_ps();
  });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kBytes) {
    ahead.fetch();
    each<2>([&](auto half) OCTAVO_FLAT {
      __m256i dots[R];  // 16-bit sums
      each<R>([&](auto r) OCTAVO_FLAT { dots[r] = _mm256_setzero_si256(); });
      each<4>([&](auto step) OCTAVO_FLAT {
        const __m256i both = load_bytes(panel + 64 * step + 32 * half);
        const __m256i first = _mm256_and_si256(both, nibble);
        each<R>([&](auto r) OCTAVO_FLAT { dot_u4(dots[r], first, row[r] + 4 * step); });
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        each<R>([&](auto r) OCTAVO_FLAT { dot_u4(dots[r], second, row[r] + 16 + 4 * step); });
      });
      const __m256 scales = load_f16(panel + kInt4ScaleAt + 16 * half);
      each<R>([&](auto r) OCTAVO_FLAT {
        __m256i dot = _mm256_madd_epi16(dots[r], ones);
        if (!kMin) dot = _mm256_add_epi32(dot, broadcast_i32(row[r] + kActStartAt));
        add_scaled(sums[2 * r + half], dot, scales, row[r]);
      });
      if (kMin) {
        const __m256 minimums = load_f16(panel + kInt4MinAt + 16 * half);
        each<R>([&](auto r) OCTAVO_FLAT {
          sums[2 * r + half] = _mm256_fmadd_ps(minimums, broadcast_f32(row[r] + kActSumAt), sums[2 * r + half]);
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

// A span of k at a time, one half of the lanes after the other: eight rows of sums fit the registers, and the span stays
// in the first cache between the halves.
template <int R>
static void tile_w8a8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  constexpr int64_t kSpan = 8 * kGroup;
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
  const int64_t end = padded_cols(cols);
  const uint8_t* first = panel;
  const uint8_t* scales = panel + end / kGroup * kW8A8GroupBytes;
  __m256i whole[2 * R];
  each<2 * R>([&](auto i) OCTAVO_FLAT { whole[i] = _mm256_setzero_si256(); });
  for (int64_t k = 0; k < end; k += kSpan) {
    const int64_t groups = (end - k < kSpan ? end - k : kSpan) / kGroup;
    each<2>([&](auto half) OCTAVO_FLAT {
      const uint8_t* row[R];
      __m256i dots[R];
      each<R>([&](auto r) OCTAVO_FLAT {
        row[r] = act + static_cast<size_t>(r) * stride + k;
        dots[r] = whole[2 * r + half];
      });
      const uint8_t* from = panel + 32 * half;
      for (int64_t group = 0; group < groups; ++group, from += kW8A8GroupBytes) {
        if (half == 0) ahead.fetch();
        each<8>([&](auto step) OCTAVO_FLAT {
          const __m256i weights = _mm256_xor_si256(load_bytes(from + 64 * step), offset);
          const __m256i sizes = _mm256_abs_epi8(weights);
          each<R>([&](auto r) OCTAVO_FLAT { dot_i8(dots[r], weights, sizes, ones, row[r] + 4 * step); });
        });
        each<R>([&](auto r) OCTAVO_FLAT { row[r] += kGroup; });
      }
      each<R>([&](auto r) OCTAVO_FLAT { whole[2 * r + half] = dots[r]; });
    });
    panel += groups * kW8A8GroupBytes;
  }
  __m256 sums[2 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    const uint8_t* tail = act + static_cast<size_t>(r) * stride + end;
    const __m256 scale = broadcast_f32(tail);
    each<2>([&](auto half) OCTAVO_FLAT {
      __m256i high = _mm256_setzero_si256();
      each<kSpikes>([&](auto i) OCTAVO_FLAT {
        const uint8_t* spike = spike_of(tail, i);
        const __m256i weights = _mm256_xor_si256(load_bytes(step_of(spike, first) + 32 * half), offset);
        dot_i8(high, weights, _mm256_abs_epi8(weights), ones, spike + 4);
      });
      whole[2 * r + half] = _mm256_add_epi32(whole[2 * r + half], _mm256_slli_epi32(high, kSpikeShift));
      const __m256 both = _mm256_mul_ps(load_floats(scales + 32 * half), scale);
      sums[2 * r + half] = _mm256_mul_ps(_mm256_cvtepi32_ps(whole[2 * r + half]), both);
    });
  });
  store_tile<R>(sums, to);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

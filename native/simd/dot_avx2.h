// Tiles of `linear` for AVX2 with FMA: kernels/pack.h's panels times up to 8 (integers) or 6 (floats) activation rows.
//
// A panel's 16 lanes are two registers, its halves. int4: vpmaddubsw of unsigned nibbles and signed activations; eight
// steps of at most 2 * 15 * 127 stay below 2^15, so a group adds up in 16 bits and widens once. int8: 255 * 127 * 2
// would not, so the weights' signs move to the activations (at most 128 * 128 * 2, and that only below zero) and every
// step widens. All of it exact: a group's sum equals the other instruction sets'.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/pack.h"
#include "simd/dot_each.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Streams of panels a tile of so few rows takes at once. An fma takes 4 cycles and two begin in one: a panel's two sums
// a row wait for themselves. More streams would not: each is one more that memory has to find at a call's start.
constexpr int64_t float_streams(int64_t rows) { return rows <= 2 ? 2 : 1; }
constexpr int64_t int_streams(int64_t) { return 1; }

constexpr int64_t kF32TileRows = 6;
constexpr int64_t kBF16TileRows = 6;
constexpr int64_t kIntTileRows = 8;
constexpr int64_t kW8A8TileRows = 8;
constexpr int kXorRows = 4;           // from so many rows of int8 on, signs move by dot_i8_two
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

// The same of two rows, with the signs of `below` (all ones where a weight is negative) put on the activations by
// x ^ below: -x is that + 1, so all of a step's sums lack the sizes of its negative weights. vpsignb would share the
// two units of the products, vpxor has four.
static inline void dot_i8_two(__m256i& sum, __m256i& next, __m256i below, __m256i sizes, __m256i ones,
                              const uint8_t* p, const uint8_t* q) {
  __m256i x, y;
  asm("vpbroadcastd %7, %2\n\tvpbroadcastd %8, %3\n\tvpxor %4, %2, %2\n\tvpxor %4, %3, %3\n\t"
      "vpmaddubsw %2, %5, %2\n\tvpmaddubsw %3, %5, %3\n\tvpmaddwd %6, %2, %2\n\tvpmaddwd %6, %3, %3\n\t"
      "vpaddd %2, %0, %0\n\tvpaddd %3, %1, %1"
      : "+x"(sum), "+x"(next), "=&x"(x), "=&x"(y)
      : "x"(below), "x"(sizes), "x"(ones), "m"(*reinterpret_cast<const int32_t*>(p)),
        "m"(*reinterpret_cast<const int32_t*>(q)));
}

static inline void dot_i8_one(__m256i& sum, __m256i below, __m256i sizes, __m256i ones, const uint8_t* p) {
  __m256i x;
  asm("vpbroadcastd %5, %1\n\tvpxor %2, %1, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %4, %1, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(sum), "=&x"(x)
      : "x"(below), "x"(sizes), "x"(ones), "m"(*reinterpret_cast<const int32_t*>(p)));
}

static inline __m256 broadcast_f32(const uint8_t* p) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
}

static inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

static inline __m256 load_floats(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }

// Both halves of a row of sums += weights times the activation at p. One more written out: gcc 12 spills six rows of it.
static inline void add_float(__m256& low_sum, __m256& high_sum, __m256 low, __m256 high, const uint8_t* p) {
  __m256 x;
  asm("vbroadcastss %5, %2\n\tvfmadd231ps %3, %2, %0\n\tvfmadd231ps %4, %2, %1"
      : "+x"(low_sum), "+x"(high_sum), "=&x"(x)
      : "x"(low), "x"(high), "m"(*reinterpret_cast<const float*>(p)));
}

// The even bf16 of pairs, and the odd ones: from memory each, since no register is free to keep both.
static inline __m256 shifted(const uint8_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_bytes(p), 16)); }

static inline __m256 masked(const uint8_t* p, __m256 odd) {
  __m256 out;
  asm("vandps %2, %1, %0" : "=x"(out) : "x"(odd), "m"(*reinterpret_cast<const __m256_u*>(p)));
  return out;
}

static inline __m256 load_f16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// sums[2 r] and sums[2 r + 1] are the halves of row r.
template <int R>
OCTAVO_FLAT static inline void store_tile(const __m256 (&sums)[2 * R], const TileOut& to) {
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

// Rows of sums, 2 * R from `kFirst` on, += a panel's two registers times the activations `at` bytes into the rows.
template <int R, int kFirst, int N>
OCTAVO_FLAT static inline void add_floats(__m256 (&sums)[N], __m256 low, __m256 high, const uint8_t* const (&row)[R],
                                          int64_t at) {
  each<R>([&](auto r) OCTAVO_FLAT {
    add_float(sums[kFirst + 2 * r], sums[kFirst + 2 * r + 1], low, high, row[r] + at);
  });
}

// P streams of panels of floats times R rows: 12 sums at most, so that a panel's two registers and an activation fit
// beside them.
template <int R, int P, bool kBF16>
static inline void tile_floats(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                               const TileOut& to) {
  const __m256 odd = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  const int64_t gap = P == 1 ? 0 : to.panel_gap;
  const uint8_t* row[R];
  __m256 sums[2 * R * P];
  each<R>([&](auto r) OCTAVO_FLAT { row[r] = act + static_cast<size_t>(r) * stride; });
  each<2 * R * P>([&](auto i) OCTAVO_FLAT { sums[i] = _mm256_setzero_ps(); });
  for (int64_t k = 0; k < cols; k += kBF16 ? 2 : 1, panel += 64, ahead.at += ahead.step) {
    each<P>([&](auto p) OCTAVO_FLAT {
      const uint8_t* from = panel + p * gap;
      __builtin_prefetch(ahead.at + p * gap, 0, R <= Ahead::few_rows(Form::kF32) ? 3 : 2);
      if constexpr (kBF16) {
        add_floats<R, 2 * R * p>(sums, shifted(from), shifted(from + 32), row, 4 * k);
        add_floats<R, 2 * R * p>(sums, masked(from, odd), masked(from + 32, odd), row, 4 * k + 4);
      } else {
        add_floats<R, 2 * R * p>(sums, load_floats(from), load_floats(from + 32), row, 4 * k);
      }
    });
  }
  each<P>([&](auto p) OCTAVO_FLAT {
    __m256 part[2 * R];
    each<2 * R>([&](auto i) OCTAVO_FLAT { part[i] = sums[2 * R * p + i]; });
    store_tile<R>(part, to.of_stream(p));
  });
}

template <int R, bool kBF16>
static inline void tile_or_streams(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                                   const TileOut& to) {
  if (float_streams(R) > 1 && to.streams > 1) {
    tile_floats<R, float_streams(R), kBF16>(panel, cols, act, stride, ahead, to);
  } else {
    tile_floats<R, 1, kBF16>(panel, cols, act, stride, ahead, to);
  }
}

template <int R>
static void tile_f32(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                     const TileOut& to) {
  tile_or_streams<R, false>(panel, cols, act, stride, ahead, to);
}

template <int R>
static void tile_bf16(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  tile_or_streams<R, true>(panel, cols, act, stride, ahead, to);
}

// sum += dot * (scales of the lanes * scale of the activation at `act`).
static inline void add_scaled(__m256& sum, __m256i dot, __m256 scales, const uint8_t* act) {
  const __m256 scale = _mm256_mul_ps(scales, broadcast_f32(act + kActScaleAt));
  sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum);
}

// One step of 8 lanes of int8 for R rows. `lacking`: 16-bit sums of what dot_i8_two leaves out, at most 256 a step.
template <int R>
static inline void step_i8(__m256i (&dots)[R], __m256i& lacking, const uint8_t* panel, const uint8_t* const (&row)[R],
                           int at) {
  const __m256i weights = _mm256_xor_si256(load_bytes(panel), _mm256_set1_epi8(static_cast<char>(0x80)));
  const __m256i sizes = _mm256_abs_epi8(weights);
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (R < kXorRows) {
    each<R>([&](auto r) OCTAVO_FLAT { dot_i8(dots[r], weights, sizes, ones, row[r] + at); });
  } else {
    const __m256i below = _mm256_cmpgt_epi8(_mm256_setzero_si256(), weights);
    each<R / 2>([&](auto two) OCTAVO_FLAT {
      dot_i8_two(dots[2 * two], dots[2 * two + 1], below, sizes, ones, row[2 * two] + at, row[2 * two + 1] + at);
    });
    if constexpr (R % 2 != 0) dot_i8_one(dots[R - 1], below, sizes, ones, row[R - 1] + at);
    __m256i x;
    asm("vpmaddubsw %2, %3, %1\n\tvpsubw %1, %0, %0" : "+x"(lacking), "=&x"(x) : "x"(below), "x"(sizes));
  }
}

template <int R>
static inline void add_lacking(__m256i (&dots)[R], __m256i lacking) {
  if constexpr (R >= kXorRows) {
    const __m256i sum = _mm256_madd_epi16(lacking, _mm256_set1_epi16(1));
    each<R>([&](auto r) OCTAVO_FLAT { dots[r] = _mm256_add_epi32(dots[r], sum); });
  }
}

template <int R>
static void tile_int8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  const uint8_t* row[R];
  __m256 sums[2 * R];
  each<R>([&](auto r) OCTAVO_FLAT {
    row[r] = act + static_cast<size_t>(r) * stride;
    sums[2 * r] = sums[2 * r + 1] = _mm256_setzero_ps();
  });
  for (int64_t k = 0; k < cols; k += kGroup, panel += kInt8GroupBytes) {
    ahead.fetch<R <= Ahead::few_rows(Form::kInt8)>();
    each<2>([&](auto half) OCTAVO_FLAT {
      __m256i dots[R];
      __m256i lacking = _mm256_setzero_si256();
      each<R>([&](auto r) OCTAVO_FLAT { dots[r] = _mm256_setzero_si256(); });
      each<8>([&](auto step) OCTAVO_FLAT { step_i8<R>(dots, lacking, panel + 64 * step + 32 * half, row, 4 * step); });
      add_lacking<R>(dots, lacking);
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
    ahead.fetch<R <= Ahead::few_rows(Form::kInt4)>();
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
      __m256i lacking = _mm256_setzero_si256();
      each<R>([&](auto r) OCTAVO_FLAT {
        row[r] = act + static_cast<size_t>(r) * stride + k;
        dots[r] = whole[2 * r + half];
      });
      const uint8_t* from = panel + 32 * half;
      for (int64_t group = 0; group < groups; ++group, from += kW8A8GroupBytes) {
        if (half == 0) ahead.fetch<R <= Ahead::few_rows(Form::kW8A8)>();
        each<8>([&](auto step) OCTAVO_FLAT { step_i8<R>(dots, lacking, from + 64 * step, row, 4 * step); });
        each<R>([&](auto r) OCTAVO_FLAT { row[r] += kGroup; });
      }
      add_lacking<R>(dots, lacking);
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

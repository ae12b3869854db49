// Tiles of `linear` for AVX-512 with VNNI and BF16: kernels/pack.h's panels times up to 8 activation rows, or up to 16
// where a row takes one register (bf16, w8a8).
//
// One 64-byte vector holds one step (4 bytes of k, or a pair of bf16) of all 16 lanes; the activation's same bytes are
// broadcast from memory. Weights are the unsigned operand of vpdpbusd. Per group and row: 8 dot products, one
// conversion, one product of the scales and one fma (two with minimums), which bounds the integer forms to 8 of 10
// (8 of 11) slots of the two units that can multiply.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/pack.h"
#include "simd/dot_each.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Streams of panels a tile of so few rows takes at once.
constexpr int64_t float_streams(int64_t) { return 1; }
constexpr int64_t int_streams(int64_t) { return 1; }

constexpr int64_t kF32TileRows = 8;
constexpr int64_t kBF16TileRows = 16;
constexpr int64_t kIntTileRows = 8;
constexpr int64_t kW8A8TileRows = 16;
constexpr bool kPairsOfBF16 = true;  // activations of the bf16 form stay bf16

static inline __m512i broadcast_i32(const uint8_t* p) {
  int32_t value;
  __builtin_memcpy(&value, p, 4);
  return _mm512_set1_epi32(value);
}

static inline __m512 broadcast_f32(const uint8_t* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return _mm512_set1_ps(value);
}

// A tile's activations at one step. Sixteen pointers would not fit the registers, so row r is one of two pointers plus
// r % 8 strides: 1, 3, 5 or 7 of them in a register, times the 1, 2 or 4 that an x86 address takes for nothing.
struct Rows {
  const uint8_t* low;   // row 0
  const uint8_t* high;  // row 8
  int64_t strides[4];   // times 1, 3, 5, 7

  inline Rows(const uint8_t* act, size_t stride) : low(act), high(act + 8 * stride) {
    each<4>([&](auto i) OCTAVO_FLAT { strides[i] = (2 * i + 1) * static_cast<int64_t>(stride); });
    // The dot products below read memory that their operands do not name: what was written there is there from here on.
    asm volatile("" : "+r"(low), "+r"(high) : : "memory");
  }

  inline void advance(int64_t bytes) {
    low += bytes;
    high += bytes;
  }

  // r % 8 = odd * scale, odd one of 1, 3, 5, 7; its place among the strides.
  static constexpr int scale_of(int r) { return r % 8 == 0 ? 0 : r % 2 != 0 ? 1 : r % 4 != 0 ? 2 : 4; }
  static constexpr int stride_of(int r) { return r % 8 == 0 ? 0 : r % 8 / scale_of(r) / 2; }

  inline const uint8_t* base(int r) const { return r < 8 ? low : high; }
  inline const uint8_t* at(int r) const { return base(r) + scale_of(r) * strides[stride_of(r)]; }
};

// sum += dot(weights, row R's activation at this byte): the instruction itself broadcasts the operand, for which gcc 12
// has no pattern.
#define OCTAVO_DOT(name, instruction, Sum)                                                                            \
  template <int R, int kByte>                                                                                         \
  OCTAVO_FLAT static inline void name(Sum& sum, __m512i weights, const Rows& rows) {                                  \
    if constexpr (R % 8 == 0) {                                                                                       \
      asm(instruction " %c3(%2)%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "r"(rows.base(R)), "i"(kByte));         \
    } else {                                                                                                          \
      asm(instruction " %c4(%2,%3,%c5)%{1to16%}, %1, %0"                                                              \
          : "+v"(sum)                                                                                                 \
          : "v"(weights), "r"(rows.base(R)), "r"(rows.strides[Rows::stride_of(R)]), "i"(kByte),                       \
            "i"(Rows::scale_of(R)));                                                                                  \
    }                                                                                                                 \
  }

OCTAVO_DOT(dot_u8, "vpdpbusd", __m512i)
OCTAVO_DOT(dot_bf16, "vdpbf16ps", __m512)

#undef OCTAVO_DOT

// The maskz forms, all lanes kept: gcc 12 warns about an uninitialised value inside its own unmasked ones.
static inline __m512 to_float(__m512i values) { return _mm512_maskz_cvtepi32_ps(0xffff, values); }

static inline __m512 load_f16(const uint8_t* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}


template <int R>
static inline void store_tile(const __m512 (&sums)[R], const TileOut& to) {
  const __mmask16 lanes = static_cast<__mmask16>((1u << to.lanes) - 1u);
  if (to.bias != nullptr) {
    const __m512 bias = _mm512_maskz_loadu_ps(lanes, to.bias);
    each<R>([&](auto r) OCTAVO_FLAT {
      _mm512_mask_storeu_ps(to.out + r * to.stride, lanes, _mm512_add_ps(sums[r], bias));
    });
  } else {
    each<R>([&](auto r) OCTAVO_FLAT { _mm512_mask_storeu_ps(to.out + r * to.stride, lanes, sums[r]); });
  }
}

template <int R>
static void tile_f32(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                   const TileOut& to) {
  const uint8_t* row[R];
  __m512 sums[R];
  each<R>([&](auto r) OCTAVO_FLAT {
    row[r] = act + static_cast<size_t>(r) * stride;
    sums[r] = _mm512_setzero_ps();
  });
  for (int64_t k = 0; k < cols; ++k, panel += 64) {
    ahead.fetch<R <= Ahead::few_rows(Form::kF32)>();
    const __m512 weights = _mm512_loadu_ps(panel);
    each<R>([&](auto r) OCTAVO_FLAT { sums[r] = _mm512_fmadd_ps(weights, broadcast_f32(row[r] + 4 * k), sums[r]); });
  }
  store_tile<R>(sums, to);
}

template <int R, int kSteps>
static inline void step_bf16(__m512 (&sums)[R], const uint8_t*& panel, Rows& rows, Ahead& ahead) {
  ahead.fetch<R <= Ahead::few_rows(Form::kBF16)>(kSteps);
  each<kSteps>([&](auto step) OCTAVO_FLAT {
    const __m512i weights = _mm512_loadu_si512(panel + 64 * step);
    each<R>([&](auto r) OCTAVO_FLAT { dot_bf16<r(), 4 * step()>(sums[r], weights, rows); });
  });
  panel += 64 * kSteps;
  rows.advance(4 * kSteps);
}

template <int R>
static void tile_bf16(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  Rows rows(act, stride);
  __m512 sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = _mm512_setzero_ps(); });
  int64_t pairs = (cols + 1) / 2;
  for (; pairs >= 4; pairs -= 4) step_bf16<R, 4>(sums, panel, rows, ahead);
  for (; pairs > 0; --pairs) step_bf16<R, 1>(sums, panel, rows, ahead);
  store_tile<R>(sums, to);
}

template <int R>
static void tile_int8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                   const TileOut& to) {
  Rows rows(act, stride);
  __m512 sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = _mm512_setzero_ps(); });
  const int64_t end = cols / kGroup * kInt8ActGroupBytes;
  for (int64_t at = 0; at < end; at += kInt8ActGroupBytes, panel += kInt8GroupBytes) {
    ahead.fetch<R <= Ahead::few_rows(Form::kInt8)>();
    __m512i dots[R];
    each<R>([&](auto r) OCTAVO_FLAT { dots[r] = broadcast_i32(rows.at(r) + kActStartAt); });
    each<8>([&](auto step) OCTAVO_FLAT {
      const __m512i weights = _mm512_loadu_si512(panel + 64 * step);
      each<R>([&](auto r) OCTAVO_FLAT { dot_u8<r(), 4 * step()>(dots[r], weights, rows); });
    });
    const __m512 scales = load_f16(panel + kInt8ScaleAt);
    each<R>([&](auto r) OCTAVO_FLAT {
      const __m512 scale = _mm512_mul_ps(scales, broadcast_f32(rows.at(r) + kActScaleAt));
      sums[r] = _mm512_fmadd_ps(to_float(dots[r]), scale, sums[r]);
    });
    rows.advance(kInt8ActGroupBytes);
  }
  store_tile<R>(sums, to);
}

template <int R, bool kMin>
static inline void tile_nibbles(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                                const TileOut& to) {
  constexpr int64_t kBytes = kMin ? kInt4MinGroupBytes : kInt4GroupBytes;
  const __m512i low = _mm512_set1_epi8(15);
  Rows rows(act, stride);
  __m512 sums[R];
  each<R>([&](auto r) OCTAVO_FLAT { sums[r] = _mm512_setzero_ps(); });
  const int64_t end = cols / kGroup * kInt4ActGroupBytes;
  for (int64_t at = 0; at < end; at += kInt4ActGroupBytes, panel += kBytes) {
    ahead.fetch<R <= Ahead::few_rows(Form::kInt4)>();
    __m512i dots[R];
    each<R>([&](auto r) OCTAVO_FLAT {
      dots[r] = kMin ? _mm512_setzero_si512() : broadcast_i32(rows.at(r) + kActStartAt);
    });
    each<4>([&](auto step) OCTAVO_FLAT {
      const __m512i both = _mm512_loadu_si512(panel + 64 * step);
      const __m512i first = _mm512_and_si512(both, low);
      each<R>([&](auto r) OCTAVO_FLAT { dot_u8<r(), 4 * step()>(dots[r], first, rows); });
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
      each<R>([&](auto r) OCTAVO_FLAT { dot_u8<r(), 16 + 4 * step()>(dots[r], second, rows); });
    });
    const __m512 scales = load_f16(panel + kInt4ScaleAt);
    each<R>([&](auto r) OCTAVO_FLAT {
      const __m512 scale = _mm512_mul_ps(scales, broadcast_f32(rows.at(r) + kActScaleAt));
      sums[r] = _mm512_fmadd_ps(to_float(dots[r]), scale, sums[r]);
    });
    if (kMin) {
      const __m512 minimums = load_f16(panel + kInt4MinAt);
      each<R>([&](auto r) OCTAVO_FLAT {
        sums[r] = _mm512_fmadd_ps(minimums, broadcast_f32(rows.at(r) + kActSumAt), sums[r]);
      });
    }
    rows.advance(kInt4ActGroupBytes);
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

template <int R>
static void tile_w8a8(const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride, Ahead ahead,
                      const TileOut& to) {
  constexpr int kChains = R <= 2 ? 2 : 1;  // so that no dot product waits for the one before
  const int64_t end = padded_cols(cols);
  Rows rows(act, stride);
  __m512i dots[R * kChains];
  each<R>([&](auto r) OCTAVO_FLAT {
    dots[r] = broadcast_i32(rows.at(r) + end + kW8A8ActStartAt);
    if constexpr (kChains == 2) dots[R + r] = _mm512_setzero_si512();
  });
  for (int64_t k = 0; k < end; k += kGroup, panel += kW8A8GroupBytes, rows.advance(kGroup)) {
    ahead.fetch<R <= Ahead::few_rows(Form::kW8A8)>();
    each<8>([&](auto step) OCTAVO_FLAT {
      const __m512i weights = _mm512_loadu_si512(panel + 64 * step);
      each<R>([&](auto r) OCTAVO_FLAT { dot_u8<r(), 4 * step()>(dots[step % kChains * R + r], weights, rows); });
    });
  }
  // The rows stand at their tails now.
  const __m512 scales = _mm512_loadu_ps(panel);
  panel -= end / kGroup * kW8A8GroupBytes;
  __m512 sums[R];
  each<R>([&](auto r) OCTAVO_FLAT {
    if constexpr (kChains == 2) dots[r] = _mm512_add_epi32(dots[r], dots[R + r]);
    __m512i high = _mm512_setzero_si512();
    each<kSpikes>([&](auto i) OCTAVO_FLAT {
      const uint8_t* spike = spike_of(rows.at(r), i);
      high = _mm512_dpbusd_epi32(high, _mm512_loadu_si512(step_of(spike, panel)), broadcast_i32(spike + 4));
    });
    dots[r] = _mm512_add_epi32(dots[r], _mm512_maskz_slli_epi32(0xffff, high, kSpikeShift));
    sums[r] = _mm512_mul_ps(to_float(dots[r]), _mm512_mul_ps(scales, broadcast_f32(rows.at(r))));
  });
  store_tile<R>(sums, to);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

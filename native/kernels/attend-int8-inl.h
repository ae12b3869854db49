// Attention over int8 keys and values (attention.h draws the tiles).
//
// Where four products of bytes are one instruction, both products of attention stay integers: a query becomes two digits
// of 8 bits with one scale a row, the weights of a step two digits of 8 bits with one scale a row and step, the value's
// scale folded in. Sums of integers are exact, so they have no order. Elsewhere the tiles of a step are widened to
// float32 once for all its rows, and are then those of CacheF32.
#pragma once

#include "kernels.h"
#include "kernels/attend-cache-inl.h"
#include "kernels/attend-tile-inl.h"
#include "kernels/kv-inl.h"
#include "simd/dot_each.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

#ifdef OCTAVO_QUAD_DOT

// A query row: hi [dim], lo [dim] with q = scale * (256 * hi + lo); float scale; int32 where the sums of hi and of lo
// begin, -128 * sum(digits), for the offset of K. A row of weights: hi [64], lo [64] with weight * value's scale =
// scale * (256 * hi + lo), in the order of store_digits; float scale.
struct CacheInt8 {
  using Query = uint8_t;
  using Chance = uint32_t;  // a row of weights is 64 of them long
  static constexpr int kQueryParts = 4;
  static constexpr int kPowerDegree = 5;
  static constexpr int64_t room_floats(int64_t) { return 2 * kKeysPerStep; }
  static constexpr int64_t kChanceScaleAt = 128;  // bytes

  OCTAVO_SIMD void write_query(const float* q, int64_t head_dim, int64_t dim, uint8_t* out) {
    float top = 0.0f;
    for (int64_t d = 0; d < dim; d += 16) {
      const F32 size = abs(rotate(load_padded(q, d, head_dim)));
      const uint32_t bits = max_bits(size, size, size, set1(top));
      __builtin_memcpy(&top, &bits, 4);
    }
    const float inverse = top < kLeastInt8 ? 0.0f : 32512.0f / top;
    int32_t start[2] = {0, 0};
    for (int64_t d = 0; d < dim; d += 16) {
      const I32 whole = to_nearest_int(rotate(load_padded(q, d, head_dim)) * set1(inverse));
      const I32 high = shift_right<8>(whole + set1_i32(128)), low = whole - shift_left<8>(high);
      store_bytes(out + d, high);
      store_bytes(out + dim + d, low);
      start[0] -= 128 * sum(high);
      start[1] -= 128 * sum(low);
    }
    const float scale = top / 32512.0f + (top - top);  // NaN unless finite
    __builtin_memcpy(out + 2 * dim, &scale, 4);
    __builtin_memcpy(out + 2 * dim + 4, start, 8);
  }

  // The sum of the weights is that of unrounded ones: the digits keep 15 bits and more. A weight of 0 is one whatever
  // its value's scale: an unwritten token's may be NaN.
  OCTAVO_SIMD F32 round_chances(const F32* p, const AttendStep& step, uint32_t* out) {
    const float* scales = step.scales + kKeysPerStep;
    F32 c[kTilesPerStep];
    each<kTilesPerStep>([&](auto t) OCTAVO_FLAT { c[t] = multiply_unless_zero(p[t], load(scales + 16 * t)); });
    // A power of two, so that the largest has 15 or 16 bits; nothing where all are next to nothing.
    const uint32_t exponent = max_bits(c[0], c[1], c[2], c[3]) >> 23;
    const bool number = exponent < 255, some = exponent >= kLeastExponent;
    const uint32_t inverse_bits = number && some ? (254 + 15 - exponent) << 23 : 0;
    const uint32_t scale_bits = !number ? 0x7fc00000u : some ? (exponent - 15) << 23 : 0;
    float inverse;
    __builtin_memcpy(&inverse, &inverse_bits, 4);
    auto* digits = reinterpret_cast<uint8_t*>(out);
    store_digits(digits, to_nearest_int(c[0] * set1(inverse)), to_nearest_int(c[1] * set1(inverse)),
                 to_nearest_int(c[2] * set1(inverse)), to_nearest_int(c[3] * set1(inverse)));
    __builtin_memcpy(digits + kChanceScaleAt, &scale_bits, 4);
    return (p[0] + p[1]) + (p[2] + p[3]);
  }

 private:
  static constexpr uint32_t kLeastExponent = 40;  // 2^-87
};

// The step's scales as floats, in `room`: of K [64], of V [64].
OCTAVO_SIMD AttendStep ready_step(CacheInt8, const AttendStep& step, int64_t, float* room) {
  AttendStep ready = step;
  ready.scales = room;
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    const auto* stored = reinterpret_cast<const uint16_t*>(step.tiles[t] + 2 * step.value_offset);
    store(room + 16 * t, load_bf16(stored));
    store(room + kKeysPerStep + 16 * t, load_bf16(stored + 16));
    __builtin_prefetch(step.ahead[t] + 2 * step.value_offset, 0, 2);
  }
  return ready;
}

constexpr int kInt8Rows = 3, kInt8Columns = 4;  // two sums each, four registers of K or V, a broadcast: 29 of 32

// f(R, first row) for all rows, as many at once as the registers hold.
template <class F>
OCTAVO_SIMD void for_rows_int8(int64_t rows, const F& f) {
  int64_t r = 0;
  for (; r + kInt8Rows <= rows; r += kInt8Rows) f(Index<kInt8Rows>{}, r);
  if (rows - r == 2) f(Index<2>{}, r);
  if (rows - r == 1) f(Index<1>{}, r);
}

// scores[R][16 * T] of the tiles, times both scales.
template <int R, int T, bool kFetch>
OCTAVO_SIMD void score_int8(const uint8_t* q, int64_t dim, const AttendStep& step, int64_t tile, float* scores) {
  const int64_t stride = CacheInt8::kQueryParts * dim;
  I32 high[R * T], low[R * T];
  each<R>([&](auto r) OCTAVO_FLAT {
    int32_t start[2];
    __builtin_memcpy(start, q + r * stride + 2 * dim + 4, 8);
    each<T>([&](auto t) OCTAVO_FLAT {
      high[r * T + t] = set1_i32(start[0]);
      low[r * T + t] = set1_i32(start[1]);
    });
  });
  const uint8_t *keys[T], *ahead[T];
  each<T>([&](auto t) OCTAVO_FLAT {
    keys[t] = step.tiles[tile + t];
    ahead[t] = step.ahead[tile + t];
  });
  for (int64_t d = 0; d < dim; d += 4) {
    Quads k[T];
    each<T>([&](auto t) OCTAVO_FLAT {
      k[t] = load_quads(keys[t] + 16 * d);
      if constexpr (kFetch) __builtin_prefetch(ahead[t] + 16 * d, 0, 2);
    });
    each<R>([&](auto r) OCTAVO_FLAT {
      const Quads h = set1_quads(q + r * stride + d), l = set1_quads(q + r * stride + dim + d);
      each<T>([&](auto t) OCTAVO_FLAT { add_quad_dot(high[r * T + t], k[t], h); });
      each<T>([&](auto t) OCTAVO_FLAT { add_quad_dot(low[r * T + t], k[t], l); });
    });
  }
  each<R>([&](auto r) OCTAVO_FLAT {
    float scale;
    __builtin_memcpy(&scale, q + r * stride + 2 * dim, 4);
    each<T>([&](auto t) OCTAVO_FLAT {
      const F32 scales = load(step.scales + 16 * (tile + t));
      const F32 whole = fma(to_float(high[r * T + t]), set1(256.0f), to_float(low[r * T + t]));
      store(scores + r * kKeysPerStep + 16 * t, whole * (set1(scale) * scales));
    });
  });
}

template <int R, bool kFetch>
static void score_rows_int8(const uint8_t* q, int64_t dim, const AttendStep& step, float* scores) {
  int64_t t = step.first_tile;
  for (; t + kInt8Columns <= step.end_tile; t += kInt8Columns) {
    score_int8<R, kInt8Columns, kFetch>(q, dim, step, t, scores + 16 * t);
  }
  for (; t < step.end_tile; ++t) score_int8<R, 1, kFetch>(q, dim, step, t, scores + 16 * t);
}

static void score_step(CacheInt8, const uint8_t* q, int64_t dim, const AttendStep& step, int64_t rows,
                       float* scores) {
  const int64_t stride = CacheInt8::kQueryParts * dim;
  bool fetch = step.fetch;
  for_rows_int8(rows, [&](auto count, int64_t r) OCTAVO_FLAT {
    if (fetch) {
      score_rows_int8<count, true>(q + r * stride, dim, step, scores + r * kKeysPerStep);
    } else {
      score_rows_int8<count, false>(q + r * stride, dim, step, scores + r * kKeysPerStep);
    }
    fetch = false;
  });
}

// Tokens past the last written one have weight 0, and bytes are always numbers: groups of four tokens are whole.
template <int R, int C, bool kFetch>
OCTAVO_SIMD void value_int8(const uint8_t* chances, const AttendStep& step, int64_t dim, int64_t column, float* sums) {
  constexpr int64_t kStride = kKeysPerStep * 4;
  I32 high[R * C], low[R * C];
  each<R * C>([&](auto i) OCTAVO_FLAT {
    high[i] = set1_i32(0);
    low[i] = set1_i32(0);
  });
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    const uint8_t* values = step.tiles[t] + step.value_offset + column * 4;
    const uint8_t* ahead = step.ahead[t] + step.value_offset + column * 4;
    const int64_t keys = step.num_keys - 16 * t < 16 ? step.num_keys - 16 * t : 16;
    for (int64_t k = 0; k < keys; k += 4, values += dim * 4) {
      Quads v[C];
      each<C>([&](auto c) OCTAVO_FLAT {
        v[c] = load_quads(values + 64 * c);
        if constexpr (kFetch) __builtin_prefetch(ahead + 64 * c, 0, 2);
      });
      if constexpr (kFetch) ahead += dim * 4;
      each<R>([&](auto r) OCTAVO_FLAT {
        const uint8_t* p = chances + r * kStride + 4 * (k + t);
        const Quads h = set1_quads(p), l = set1_quads(p + 64);
        each<C>([&](auto c) OCTAVO_FLAT { add_quad_dot(high[r * C + c], h, v[c]); });
        each<C>([&](auto c) OCTAVO_FLAT { add_quad_dot(low[r * C + c], l, v[c]); });
      });
    }
  }
  each<R>([&](auto r) OCTAVO_FLAT {
    float scale;
    __builtin_memcpy(&scale, chances + r * kStride + CacheInt8::kChanceScaleAt, 4);
    each<C>([&](auto c) OCTAVO_FLAT {
      const F32 whole = fma(to_float(high[r * C + c]), set1(256.0f), to_float(low[r * C + c]));
      float* at = sums + r * dim + column + 16 * c;
      store(at, fma(whole, set1(scale), load(at)));
    });
  });
}

template <int R, bool kFetch>
static void value_rows_int8(const uint8_t* chances, const AttendStep& step, int64_t dim, float* sums) {
  int64_t column = 0;
  for (; column + 16 * kInt8Columns <= dim; column += 16 * kInt8Columns) {
    value_int8<R, kInt8Columns, kFetch>(chances, step, dim, column, sums);
  }
  for (; column < dim; column += 16) value_int8<R, 1, kFetch>(chances, step, dim, column, sums);
}

OCTAVO_SIMD F32 write_chances(CacheInt8, const F32* p, const AttendStep& step, uint32_t* out) {
  return CacheInt8::round_chances(p, step, out);
}

static void value_step(CacheInt8, const uint32_t* weights, const AttendStep& step, int64_t dim, int64_t rows,
                       float* sums) {
  constexpr int64_t kStride = kKeysPerStep * 4;
  const auto* chances = reinterpret_cast<const uint8_t*>(weights);
  bool fetch = step.fetch;
  for_rows_int8(rows, [&](auto count, int64_t r) OCTAVO_FLAT {
    if (fetch) {
      value_rows_int8<count, true>(chances + r * kStride, step, dim, sums + r * dim);
    } else {
      value_rows_int8<count, false>(chances + r * kStride, step, dim, sums + r * dim);
    }
    fetch = false;
  });
}

#else

struct CacheInt8 : CacheF32 {
  static constexpr int64_t room_floats(int64_t dim) { return 2 * kKeysPerStep * dim; }
  OCTAVO_SIMD void write_query(const float* q, int64_t head_dim, int64_t dim, float* out) {
    for (int64_t d = 0; d < dim; d += 16) store(out + d, rotate(load_padded(q, d, head_dim)));
  }
};

// Byte `which` of each of 16 words, signed once `flip` has been applied.
OCTAVO_SIMD F32 widen_bytes(const uint8_t* words, uint32_t flip, int64_t which) {
  uint32_t lanes[16];
  float out[16];
  memcpy(lanes, words, 64);
  const uint32_t shift = static_cast<uint32_t>(24 - 8 * which);
  for (int64_t i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(static_cast<int32_t>((lanes[i] ^ flip) << shift) >> 24);
  }
  return load(out);
}

OCTAVO_SIMD F32 widen_scales(const uint8_t* stored) {
  uint16_t halves[16];
  uint32_t bits[16];
  float out[16];
  memcpy(halves, stored, 32);
  for (int64_t i = 0; i < 16; ++i) bits[i] = static_cast<uint32_t>(halves[i]) << 16;
  memcpy(out, bits, 64);
  return load(out);
}

// The step's tiles as those of a float32 cache, in `to`: [tiles][K, V][16 * dim]. Fetches the next step's.
static AttendStep ready_step(CacheInt8, const AttendStep& step, int64_t dim, float* to) {
  AttendStep wide = step;
  wide.value_offset = kTokensPerTile * dim * 4;
  wide.fetch = false;
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    const uint8_t* keys = step.tiles[t];
    for (int64_t at = 0; at <= 2 * step.value_offset; at += 64) __builtin_prefetch(step.ahead[t] + at, 0, 2);
    const uint8_t* values = keys + step.value_offset;
    float* k = to + t * 2 * kTokensPerTile * dim;
    float* v = k + kTokensPerTile * dim;
    const F32 k_scales = widen_scales(values + step.value_offset);
    float v_scales[16];
    store(v_scales, widen_scales(values + step.value_offset + 32));
    for (int64_t d = 0; d < dim; ++d) {
      store(k + d * 16, widen_bytes(keys + d / 4 * 64, 0x80808080u, d % 4) * k_scales);
    }
    for (int64_t token = 0; token < kTokensPerTile; ++token) {
      for (int64_t d = 0; d < dim; d += 16) {
        const F32 whole = widen_bytes(values + token / 4 * dim * 4 + d * 4, 0, token % 4);
        store(v + token * dim + d, whole * set1(v_scales[token]));
      }
    }
    wide.tiles[t] = reinterpret_cast<const uint8_t*>(k);
  }
  return wide;
}

#endif

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

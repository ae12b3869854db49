// How one type of cache is multiplied: what a register of keys or values is, and what queries and weights are rounded to.
//
// A cache type is a struct of the names of CacheF32. K registers hold kDims dimensions of 16 tokens, V registers kTokens
// tokens of 16 dimensions; `dot` multiplies both with the same few numbers, so one struct serves both. A type whose
// products have another form overloads the functions at the end of attend-tile-inl.h instead.
#pragma once

#include "kernels.h"
#include "kernels/kv-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kTilesPerStep = kKeysPerStep / kTokensPerTile;

struct CacheF32 {
  using Query = float;   // what q is held as
  using Chance = float;  // what the weights of the softmax are rounded to
  static constexpr int64_t kDims = 1, kTokens = 1;  // in one register of K, of V
  static constexpr int kQueryParts = 1;             // a row of q takes dim times so many of Query
  static constexpr int kPowerDegree = 6;            // of the series for the softmax
  struct Register { F32 v; };
  OCTAVO_SIMD Register load_register(const uint8_t* p) { return {load(reinterpret_cast<const float*>(p))}; }
  OCTAVO_SIMD Register first_only(Register a) { return a; }
  OCTAVO_SIMD F32 dot(F32 sum, const float* x, Register a) { return fma(set1(x[0]), a.v, sum); }
  OCTAVO_SIMD void write_query(const float* q, int64_t head_dim, int64_t dim, float* out) {
    for (int64_t d = 0; d < dim; d += 16) store(out + d, load_padded(q, d, head_dim));
  }
  OCTAVO_SIMD F32 round_chances(const F32* p, float* out) {
    for (int t = 0; t < kTilesPerStep; ++t) store(out + 16 * t, p[t]);
    return (p[0] + p[1]) + (p[2] + p[3]);
  }
};

#ifdef OCTAVO_PAIR_DOT
struct CacheBF16 {
  using Query = uint16_t;
  using Chance = uint16_t;
  static constexpr int64_t kDims = 2, kTokens = 2;
  static constexpr int kQueryParts = 1;
  static constexpr int kPowerDegree = 3;
  using Register = Pairs;
  OCTAVO_SIMD Register load_register(const uint8_t* p) { return load_pairs(p); }
  OCTAVO_SIMD Register first_only(Register a) { return zero_odd(a); }
  OCTAVO_SIMD F32 dot(F32 sum, const uint16_t* x, Register a) { return pair_dot(sum, set1_pair(x), a); }
  OCTAVO_SIMD void write_query(const float* q, int64_t head_dim, int64_t dim, uint16_t* out) {
    for (int64_t d = 0; d < dim; d += 16) store_bf16(out + d, load_padded(q, d, head_dim));
  }
  // The sum is that of the rounded weights, so that they add up to one.
  OCTAVO_SIMD F32 round_chances(const F32* p, uint16_t* out) {
    static const uint16_t ones[2] = {0x3f80, 0x3f80};
    store_bf16(out, p[0], p[1]);
    store_bf16(out + 32, p[2], p[3]);
    return pair_dot(pair_dot(zero(), set1_pair(ones), load_pairs(out)), set1_pair(ones), load_pairs(out + 32));
  }
};
#else
struct CacheBF16 {
  using Query = float;
  using Chance = float;
  static constexpr int64_t kDims = 2, kTokens = 2;
  static constexpr int kQueryParts = 1;
  static constexpr int kPowerDegree = 5;
  struct Register { F32 even, odd; };
  OCTAVO_SIMD Register load_register(const uint8_t* p) {
    const Pairs pairs = load_pairs(p);
    return {even(pairs), odd(pairs)};
  }
  OCTAVO_SIMD Register first_only(Register a) { return {a.even, zero()}; }
  OCTAVO_SIMD F32 dot(F32 sum, const float* x, Register a) {
    return fma(set1(x[1]), a.odd, fma(set1(x[0]), a.even, sum));
  }
  OCTAVO_SIMD void write_query(const float* q, int64_t head_dim, int64_t dim, float* out) {
    CacheF32::write_query(q, head_dim, dim, out);
  }
  OCTAVO_SIMD F32 round_chances(const F32* p, float* out) { return CacheF32::round_chances(p, out); }
};
#endif

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

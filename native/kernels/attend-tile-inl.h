// The two products of attention over one step of 64 keys: queries with keys, weights with values.
//
// Rows go in blocks that fill the registers; a row's own sums are the same in a block of any size. The first block of
// rows to meet a step fetches the next one while it multiplies, K beside K and V beside V, into the second cache: what
// is fetched into the first one is bounded by that cache's few buffers (docs/log.md).
#pragma once

#include "kernels/attend-cache-inl.h"
#include "kernels/kv-inl.h"
#include "simd/dot_each.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Registers: rows x tiles sums of scores, rows x quarters (of 64 dimensions) sums of values. A block of rows goes
// through a whole step before the next, so that its scores and sums stay in the first cache.
#if OCTAVO_NUM_REGISTERS >= 32
constexpr int kScoreRows = 6, kScoreTiles = 4, kValueRows = 6, kValueColumns = 4;
#elif OCTAVO_NUM_REGISTERS >= 8
constexpr int kScoreRows = 4, kScoreTiles = 1, kValueRows = 4, kValueColumns = 1;
#else
constexpr int kScoreRows = 2, kScoreTiles = 1, kValueRows = 1, kValueColumns = 2;
#endif
constexpr int64_t kBlockRows = kScoreRows;

struct AttendStep {
  const uint8_t* tiles[kTilesPerStep];  // K of each 16 keys
  const uint8_t* ahead[kTilesPerStep];  // the same of the step after it, or any tile
  int64_t first_tile, end_tile;         // those that hold keys some query of the piece may see
  int64_t num_keys;                     // keys of the step before the piece's last position's successor, up to 64
  int64_t value_offset;
  bool fetch;
  const float* scales;                  // of int8, where its products are integers: of K [64], of V [64]
};

template <class Cache, int R, int T, bool kFetch>
OCTAVO_SIMD void score_block(const typename Cache::Query* q, int64_t dim, const AttendStep& step, int64_t tile,
                             float* scores) {
  F32 sums[R * T];
  const uint8_t* tiles[T];
  const uint8_t* ahead[T];
  each<T>([&](auto t) OCTAVO_FLAT { ahead[t] = step.ahead[tile + t]; });
  each<R * T>([&](auto i) OCTAVO_FLAT { sums[i] = zero(); });
  each<T>([&](auto t) OCTAVO_FLAT { tiles[t] = step.tiles[tile + t]; });
  for (int64_t d = 0; d < dim; d += Cache::kDims) {
    const int64_t at = d / Cache::kDims * 64;
    typename Cache::Register keys[T];
    each<T>([&](auto t) OCTAVO_FLAT {
      keys[t] = Cache::load_register(tiles[t] + at);
      if constexpr (kFetch) __builtin_prefetch(ahead[t] + at, 0, 2);
    });
    each<R>([&](auto r) OCTAVO_FLAT {
      each<T>([&](auto t) OCTAVO_FLAT { sums[r * T + t] = Cache::dot(sums[r * T + t], q + r * dim + d, keys[t]); });
    });
  }
  each<R * T>([&](auto i) OCTAVO_FLAT { store(scores + i / T * kKeysPerStep + 16 * (tile + i % T), sums[i]); });
}

template <class Cache, int R, bool kFetch>
static void score_rows(const typename Cache::Query* q, int64_t dim, const AttendStep& step, float* scores) {
  int64_t t = step.first_tile;
  if constexpr (kScoreTiles > 1) {
    for (; t + kScoreTiles <= step.end_tile; t += kScoreTiles) {
      score_block<Cache, R, kScoreTiles, kFetch>(q, dim, step, t, scores);
    }
  }
  for (; t < step.end_tile; ++t) score_block<Cache, R, 1, kFetch>(q, dim, step, t, scores);
}

// `rows` rows, R at a time, then the rest at once.
template <class Cache, int R>
static void score_all(const typename Cache::Query* q, int64_t dim, const AttendStep& step, int64_t rows,
                      float* scores) {
  for (; rows >= R; rows -= R, q += R * dim, scores += R * kKeysPerStep) {
    if (step.fetch) {
      score_rows<Cache, R, true>(q, dim, step, scores);
    } else {
      score_rows<Cache, R, false>(q, dim, step, scores);
    }
  }
  if constexpr (R > 1) {
    if (rows > 0) score_all<Cache, R - 1>(q, dim, step, rows, scores);
  }
}

template <class Cache, int R, int C, bool kFetch>
OCTAVO_SIMD void value_block(const typename Cache::Chance* chances, const AttendStep& step, int64_t dim,
                             int64_t column, float* sums) {
  F32 acc[R * C];
  each<R * C>([&](auto i) OCTAVO_FLAT { acc[i] = load(sums + i / C * dim + column + 16 * (i % C)); });
  constexpr int64_t kTokens = Cache::kTokens;
  const int64_t register_bytes = 64, row_bytes = dim / 16 * register_bytes;
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    const uint8_t* values = step.tiles[t] + step.value_offset + column / 16 * register_bytes;
    const uint8_t* ahead = step.ahead[t] + step.value_offset + column / 16 * register_bytes;
    const int64_t keys = step.num_keys - 16 * t < 16 ? step.num_keys - 16 * t : 16;
    const typename Cache::Chance* p = chances + 16 * t;
    int64_t k = 0;
    for (; k + kTokens <= keys; k += kTokens, values += row_bytes, p += kTokens) {
      typename Cache::Register v[C];
      each<C>([&](auto c) OCTAVO_FLAT {
        v[c] = Cache::load_register(values + c * register_bytes);
        if constexpr (kFetch) __builtin_prefetch(ahead + c * register_bytes, 0, 2);
      });
      if constexpr (kFetch) ahead += row_bytes;
      each<R>([&](auto r) OCTAVO_FLAT {
        each<C>([&](auto c) OCTAVO_FLAT { acc[r * C + c] = Cache::dot(acc[r * C + c], p + r * kKeysPerStep, v[c]); });
      });
    }
    if (k < keys) {  // the pair's second token was not written yet
      each<C>([&](auto c) OCTAVO_FLAT {
        const typename Cache::Register v = Cache::first_only(Cache::load_register(values + c * register_bytes));
        each<R>([&](auto r) OCTAVO_FLAT { acc[r * C + c] = Cache::dot(acc[r * C + c], p + r * kKeysPerStep, v); });
      });
    }
  }
  each<R * C>([&](auto i) OCTAVO_FLAT { store(sums + i / C * dim + column + 16 * (i % C), acc[i]); });
}

template <class Cache, int R, bool kFetch>
static void value_rows(const typename Cache::Chance* chances, const AttendStep& step, int64_t dim, float* sums) {
  int64_t column = 0;
  for (; column + 16 * kValueColumns <= dim; column += 16 * kValueColumns) {
    value_block<Cache, R, kValueColumns, kFetch>(chances, step, dim, column, sums);
  }
  if constexpr (kValueColumns > 1) {
    for (; column < dim; column += 16) value_block<Cache, R, 1, kFetch>(chances, step, dim, column, sums);
  }
}

template <class Cache, int R>
static void value_all(const typename Cache::Chance* chances, const AttendStep& step, int64_t dim, int64_t rows,
                      float* sums) {
  for (; rows >= R; rows -= R, chances += R * kKeysPerStep, sums += R * dim) {
    if (step.fetch) {
      value_rows<Cache, R, true>(chances, step, dim, sums);
    } else {
      value_rows<Cache, R, false>(chances, step, dim, sums);
    }
  }
  if constexpr (R > 1) {
    if (rows > 0) value_all<Cache, R - 1>(chances, step, dim, rows, sums);
  }
}

// What a step calls once, and a block of rows once a step; a cache with products of its own has overloads.

// The step as the products read it; `room` for tiles that are made for it.
template <class Cache>
OCTAVO_SIMD AttendStep ready_step(Cache, const AttendStep& step, int64_t, float*) { return step; }

template <class Cache>
static void score_step(Cache, const typename Cache::Query* q, int64_t dim, const AttendStep& step, int64_t rows,
                       float* scores) {
  score_all<Cache, kScoreRows>(q, dim, step, rows, scores);
}

// Stores the weights p[4] of one row; their sum.
template <class Cache>
OCTAVO_SIMD F32 write_chances(Cache, const F32* p, const AttendStep&, typename Cache::Chance* out) {
  return Cache::round_chances(p, out);
}

template <class Cache>
static void value_step(Cache, const typename Cache::Chance* chances, const AttendStep& step, int64_t dim, int64_t rows,
                       float* sums) {
  value_all<Cache, kValueRows>(chances, step, dim, rows, sums);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

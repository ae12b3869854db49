// The two products of attention over one step of 64 keys: queries with keys, weights with values.
//
// Rows go in blocks that fill the registers; a row's own sums are the same in a block of any size.
#pragma once

#include "kernels/attend-cache-inl.h"
#include "kernels/kv-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Registers: rows x tiles sums of scores, rows x quarters (of 64 dimensions) sums of values.
#if OCTAVO_NUM_REGISTERS >= 32
constexpr int kScoreRows = 6, kScoreTiles = 4, kValueRows = 6, kValueColumns = 4;
#elif OCTAVO_NUM_REGISTERS >= 8
constexpr int kScoreRows = 4, kScoreTiles = 1, kValueRows = 2, kValueColumns = 2;
#else
constexpr int kScoreRows = 2, kScoreTiles = 1, kValueRows = 1, kValueColumns = 2;
#endif

struct AttendStep {
  const uint8_t* tiles[kTilesPerStep];  // K of each 16 keys
  int64_t first_tile, end_tile;         // those that hold keys some query of the piece may see
  int64_t num_keys;                     // keys of the step before the piece's last position's successor, up to 64
  int64_t value_offset;
};

template <class Cache, int R, int T>
OCTAVO_SIMD void score_block(const typename Cache::Query* q, int64_t dim, const uint8_t* const* tiles,
                               float* scores) {
  F32 sums[R][T];
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) sums[r][t] = zero();
  }
  for (int64_t d = 0; d < dim; d += Cache::kDims) {
    typename Cache::Register keys[T];
    for (int t = 0; t < T; ++t) keys[t] = Cache::load_register(tiles[t] + d / Cache::kDims * 64);
    for (int r = 0; r < R; ++r) {
      for (int part = 0; part < Cache::kQueryParts; ++part) {
        const typename Cache::Query* x = q + (r * Cache::kQueryParts + part) * dim + d;
        for (int t = 0; t < T; ++t) sums[r][t] = Cache::dot(sums[r][t], x, keys[t]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) store(scores + r * kKeysPerStep + 16 * t, sums[r][t]);
  }
}

template <class Cache, int R>
static void score_rows(const typename Cache::Query* q, int64_t dim, const AttendStep& step, float* scores) {
  int64_t t = step.first_tile;
  if constexpr (kScoreTiles > 1) {
    for (; t + kScoreTiles <= step.end_tile; t += kScoreTiles) {
      score_block<Cache, R, kScoreTiles>(q, dim, step.tiles + t, scores + 16 * t);
    }
  }
  for (; t < step.end_tile; ++t) score_block<Cache, R, 1>(q, dim, step.tiles + t, scores + 16 * t);
}

// `rows` rows in blocks of R, then of R - 1, ...: a row's own sums are the same in each.
template <class Cache, int R>
static void score_all(const typename Cache::Query* q, int64_t dim, const AttendStep& step, int64_t rows,
                      float* scores) {
  for (; rows >= R; rows -= R, q += R * Cache::kQueryParts * dim, scores += R * kKeysPerStep) {
    score_rows<Cache, R>(q, dim, step, scores);
  }
  if constexpr (R > 1) {
    if (rows > 0) score_all<Cache, R - 1>(q, dim, step, rows, scores);
  }
}

template <class Cache, int R, int C>
OCTAVO_SIMD void value_block(const typename Cache::Chance* chances, const AttendStep& step, int64_t dim,
                               int64_t column, const float* factors, float* sums) {
  F32 acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = load(sums + r * dim + column + 16 * c) * set1(factors[r]);
  }
  constexpr int64_t kTokens = Cache::kTokens;
  const int64_t register_bytes = 64, row_bytes = dim / 16 * register_bytes;
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    const uint8_t* values = step.tiles[t] + step.value_offset + column / 16 * register_bytes;
    const int64_t keys = step.num_keys - 16 * t < 16 ? step.num_keys - 16 * t : 16;
    const typename Cache::Chance* p = chances + 16 * t;
    int64_t k = 0;
    for (; k + kTokens <= keys; k += kTokens, values += row_bytes) {
      typename Cache::Register v[C];
      for (int c = 0; c < C; ++c) v[c] = Cache::load_register(values + c * register_bytes);
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) acc[r][c] = Cache::dot(acc[r][c], p + r * kKeysPerStep + k, v[c]);
      }
    }
    if (k < keys) {  // the pair's second token was not written yet
      for (int c = 0; c < C; ++c) {
        const typename Cache::Register v = Cache::first_only(Cache::load_register(values + c * register_bytes));
        for (int r = 0; r < R; ++r) acc[r][c] = Cache::dot(acc[r][c], p + r * kKeysPerStep + k, v);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(sums + r * dim + column + 16 * c, acc[r][c]);
  }
}

template <class Cache, int R>
static void value_rows(const typename Cache::Chance* chances, const AttendStep& step, int64_t dim,
                       const float* factors, float* sums) {
  int64_t column = 0;
  for (; column + 16 * kValueColumns <= dim; column += 16 * kValueColumns) {
    value_block<Cache, R, kValueColumns>(chances, step, dim, column, factors, sums);
  }
  for (; column < dim; column += 16) {
    value_block<Cache, R, 1>(chances, step, dim, column, factors, sums);
  }
}

template <class Cache, int R>
static void value_all(const typename Cache::Chance* chances, const AttendStep& step, int64_t dim, int64_t rows,
                      const float* factors, float* sums) {
  for (; rows >= R; rows -= R, chances += R * kKeysPerStep, factors += R, sums += R * dim) {
    value_rows<Cache, R>(chances, step, dim, factors, sums);
  }
  if constexpr (R > 1) {
    if (rows > 0) value_all<Cache, R - 1>(chances, step, dim, rows, factors, sums);
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

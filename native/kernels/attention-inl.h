// Causal attention through a block table, with a running maximum and sum (the online softmax of FlashAttention,
// arXiv 2205.14135, over paged KV, arXiv 2309.06180).
//
// Batch invariance: a query's keys are taken in steps of 64 and summed from scratch in parts of 256, both at absolute
// positions; within a step every sum has one order. Keys a query must not see have weight exactly 0, and a step or
// part it does not see at all leaves its state as it was, so a query's result does not depend on the queries it shares
// a piece with. Slots past the sequence's end may hold anything, NaN too: they are never multiplied.
#pragma once

#include "kernels.h"
#include "kernels/kv-inl.h"
#include "kernels/math-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kTilesPerStep = kKeysPerStep / kTokensPerTile;
constexpr float kLowest = -3.402823466e38f;

// Registers: rows x tiles sums of scores, rows x quarters (of 64 dimensions) sums of values.
#if OCTAVO_NUM_REGISTERS >= 32
constexpr int kScoreRows = 6, kScoreTiles = 4, kValueRows = 6, kValueColumns = 4;
#elif OCTAVO_NUM_REGISTERS >= 8
constexpr int kScoreRows = 4, kScoreTiles = 1, kValueRows = 2, kValueColumns = 2;
#else
constexpr int kScoreRows = 2, kScoreTiles = 1, kValueRows = 1, kValueColumns = 2;
#endif

// --- how one type of cache is multiplied ---

struct CacheF32 {
  using Query = float;   // what q is held as
  using Chance = float;  // what the weights of the softmax are rounded to
  static constexpr int64_t kDims = 1, kTokens = 1;  // in one register of K, of V
  static constexpr int kQueryParts = 1;             // q is the sum of so many rows of Query
  struct Register { F32 v; };
  OCTAVO_SIMD Register load_register(const uint8_t* p) { return {load(reinterpret_cast<const float*>(p))}; }
  OCTAVO_SIMD Register first_only(Register a) { return a; }
  OCTAVO_SIMD F32 dot(F32 sum, const float* x, Register a) { return fma(set1(x[0]), a.v, sum); }
  OCTAVO_SIMD void split_query(F32 q, int64_t, float* out) { store(out, q); }
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
  static constexpr int kQueryParts = 2;
  using Register = Pairs;
  OCTAVO_SIMD Register load_register(const uint8_t* p) { return load_pairs(p); }
  OCTAVO_SIMD Register first_only(Register a) { return zero_odd(a); }
  OCTAVO_SIMD F32 dot(F32 sum, const uint16_t* x, Register a) { return pair_dot(sum, set1_pair(x), a); }
  // q as bf16 and what that leaves, as bf16 again: rounding q alone would move the scores of large keys by more than
  // everything else that is rounded together.
  OCTAVO_SIMD void split_query(F32 q, int64_t dim, uint16_t* out) {
    store_bf16(out, q);
    store_bf16(out + dim, q - load_bf16(out));
  }
  // The sum is that of the rounded weights, so that they add up to one.
  OCTAVO_SIMD F32 round_chances(const F32* p, uint16_t* out) {
    for (int t = 0; t < kTilesPerStep; ++t) store_bf16(out + 16 * t, p[t]);
    const Pairs a = load_pairs(out), b = load_pairs(out + 32);
    return (even(a) + odd(a)) + (even(b) + odd(b));
  }
};
#else
struct CacheBF16 {
  using Query = float;
  using Chance = float;
  static constexpr int64_t kDims = 2, kTokens = 2;
  static constexpr int kQueryParts = 1;
  struct Register { F32 even, odd; };
  OCTAVO_SIMD Register load_register(const uint8_t* p) {
    const Pairs pairs = load_pairs(p);
    return {even(pairs), odd(pairs)};
  }
  OCTAVO_SIMD Register first_only(Register a) { return {a.even, zero()}; }
  OCTAVO_SIMD F32 dot(F32 sum, const float* x, Register a) {
    return fma(set1(x[1]), a.odd, fma(set1(x[0]), a.even, sum));
  }
  OCTAVO_SIMD void split_query(F32 q, int64_t, float* out) { store(out, q); }
  OCTAVO_SIMD F32 round_chances(const F32* p, float* out) { return CacheF32::round_chances(p, out); }
};
#endif

// --- scratch of one thread ---

struct AttendScratch {
  uint8_t* queries;  // [rows][parts][dim] of Query
  uint8_t* chances;  // [rows][64] of Chance
  float* scores;     // [rows][64]
  float* factors;    // [rows] what the sums so far are multiplied by
  float* lanes;      // [rows][16] sums of weights
  float* part;       // state of the part at hand
  float* total;      // state of the parts before it
};

OCTAVO_SIMD int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Lays the pieces out one after another from `memory`, 64-byte aligned; `bytes` gets their total.
OCTAVO_SIMD AttendScratch attend_scratch(uintptr_t memory, int64_t rows, int64_t dim, size_t* bytes) {
  uintptr_t at = memory;
  const auto take = [&at](int64_t size) {
    const uintptr_t piece = at;
    at += static_cast<uintptr_t>(round_up(size, 64));
    return piece;
  };
  AttendScratch scratch;
  scratch.queries = reinterpret_cast<uint8_t*>(take(rows * dim * 4));
  scratch.chances = reinterpret_cast<uint8_t*>(take(rows * kKeysPerStep * 4));
  scratch.scores = reinterpret_cast<float*>(take(rows * kKeysPerStep * 4));
  scratch.factors = reinterpret_cast<float*>(take(rows * 4));
  scratch.lanes = reinterpret_cast<float*>(take(rows * 64));
  scratch.part = reinterpret_cast<float*>(take(attend_state_floats(rows, dim) * 4));
  scratch.total = reinterpret_cast<float*>(take(attend_state_floats(rows, dim) * 4));
  *bytes = static_cast<size_t>(at - memory);
  return scratch;
}

static size_t attend_scratch_bytes(int64_t rows, int64_t dim) {
  size_t bytes = 0;
  attend_scratch(0, rows, dim, &bytes);
  return bytes;
}

OCTAVO_SIMD AttendScratch attend_scratch(void* memory, int64_t rows, int64_t dim) {
  size_t bytes = 0;
  return attend_scratch(reinterpret_cast<uintptr_t>(memory), rows, dim, &bytes);
}

struct AttendState {
  float* sums;     // [rows][dim] of weight * value
  float* maxima;   // [rows]
  float* weights;  // [rows] sums of weights
};

OCTAVO_SIMD AttendState attend_state(float* memory, int64_t rows, int64_t dim) {
  return {memory, memory + rows * dim, memory + rows * dim + rows};
}

// --- one step of 64 keys ---

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

// Scores to weights: scale, cap, mask, new maximum, exponential, sums.
template <class Cache>
static void weigh_rows(const AttendArgs& args, const AttendPiece& piece, int64_t first_key, const AttendStep& step,
                       int64_t heads, int64_t rows, const AttendScratch& scratch, float* maxima) {
  const F32 scale_by = set1(args.scale);
  const F32 never = set1(-__builtin_inff());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = piece.position + r / heads;
    const int64_t end = position + 1 - first_key;
    const int64_t begin = args.window > 0 ? end - args.window : 0;
    F32 s[kTilesPerStep];
    for (int64_t t = 0; t < kTilesPerStep; ++t) {
      s[t] = never;
      if (t < step.first_tile || t >= step.end_tile) continue;
      F32 score = load(scratch.scores + r * kKeysPerStep + 16 * t) * scale_by;
      if (args.softcap > 0.0f) score = set1(args.softcap) * tanh(score / set1(args.softcap));
      const bool whole = begin <= 16 * t && end >= 16 * t + 16;
      s[t] = whole ? score : select(mask_range(begin - 16 * t, end - 16 * t), score, never);
    }
    const float old_max = maxima[r];
    const float step_max = max_lane(max(max(s[0], s[1]), max(s[2], s[3])));
    const float new_max = step_max > old_max ? step_max : old_max;
    float factor = 1.0f;
    if (new_max != old_max) {
      float lanes[16];
      store(lanes, exp(set1(old_max - new_max)));
      factor = lanes[0];
    }
    maxima[r] = new_max;
    scratch.factors[r] = factor;
    F32 p[kTilesPerStep];
    for (int t = 0; t < kTilesPerStep; ++t) p[t] = exp(s[t] - set1(new_max));
    const F32 added =
        Cache::round_chances(p, reinterpret_cast<typename Cache::Chance*>(scratch.chances) + r * kKeysPerStep);
    store(scratch.lanes + 16 * r, fma(load(scratch.lanes + 16 * r), set1(factor), added));
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

// --- parts ---

// The tiles of the step at `first_key` that any query of the piece may see; those of the next step are prefetched.
OCTAVO_SIMD AttendStep attend_step(const AttendArgs& args, const AttendPiece& piece, int64_t first_key,
                                     int64_t lowest_key, int64_t end_key) {
  AttendStep step;
  step.value_offset = kv_value_offset(args.kv);
  const int64_t begin = lowest_key > first_key ? lowest_key - first_key : 0;
  step.num_keys = end_key - first_key < kKeysPerStep ? end_key - first_key : kKeysPerStep;
  step.first_tile = begin / kTokensPerTile;
  step.end_tile = (step.num_keys + kTokensPerTile - 1) / kTokensPerTile;
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    const int64_t key = first_key + t * kTokensPerTile;
    const int64_t block = piece.block_table[key / args.kv.block_size];
    step.tiles[t] = kv_tile(args.kv, block, piece.kv_head, key % args.kv.block_size / kTokensPerTile);
  }
  return step;
}

OCTAVO_SIMD void prefetch_step(const AttendStep& step, int64_t tile_bytes) {
  for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
    for (int64_t b = 0; b < tile_bytes; b += 64) {
      __builtin_prefetch(step.tiles[t] + b);
      __builtin_prefetch(step.tiles[t] + step.value_offset + b);
    }
  }
}

// scratch.part = state of the piece's queries over the keys of part `part`.
template <class Cache>
static void attend_part(const AttendArgs& args, const AttendPiece& piece, int64_t part, int64_t heads,
                        const AttendScratch& scratch) {
  const int64_t dim = args.kv.dim, rows = piece.num_tokens * heads;
  const AttendState state = attend_state(scratch.part, rows, dim);
  for (int64_t i = 0; i < rows * dim; i += 16) store(state.sums + i, zero());
  for (int64_t r = 0; r < rows; ++r) {
    state.maxima[r] = kLowest;
    store(scratch.lanes + 16 * r, zero());
  }
  const int64_t end_key = piece.position + piece.num_tokens;
  const int64_t lowest_key =
      args.window > 0 && piece.position + 1 > args.window ? piece.position + 1 - args.window : 0;
  const int64_t part_end = (part + 1) * kKeysPerPart < end_key ? (part + 1) * kKeysPerPart : end_key;
  int64_t key = part * kKeysPerPart;
  if (lowest_key > key) key = lowest_key / kKeysPerStep * kKeysPerStep;
  const bool few = rows <= 8;  // then the step is bound by memory
  const int64_t tile_bytes = kv_tile_bytes(args.kv);
  const auto* queries = reinterpret_cast<const typename Cache::Query*>(scratch.queries);
  const auto* chances = reinterpret_cast<const typename Cache::Chance*>(scratch.chances);
  AttendStep step;
  if (key < part_end) step = attend_step(args, piece, key, lowest_key, end_key);
  while (key < part_end) {
    AttendStep next = step;
    if (key + kKeysPerStep < end_key) {
      next = attend_step(args, piece, key + kKeysPerStep, lowest_key, end_key);
      if (few) prefetch_step(next, tile_bytes);
    }
    score_all<Cache, kScoreRows>(queries, dim, step, rows, scratch.scores);
    weigh_rows<Cache>(args, piece, key, step, heads, rows, scratch, state.maxima);
    value_all<Cache, kValueRows>(chances, step, dim, rows, scratch.factors, state.sums);
    key += kKeysPerStep;
    step = next;
  }
  for (int64_t r = 0; r < rows; ++r) state.weights[r] = sum(load(scratch.lanes + 16 * r));
}

OCTAVO_SIMD float exp_one(float x) {
  float lanes[16];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

// total = total joined with part, in this order.
static void merge_part(int64_t rows, int64_t dim, const AttendState& total, const AttendState& part) {
  for (int64_t r = 0; r < rows; ++r) {
    const float top = part.maxima[r] > total.maxima[r] ? part.maxima[r] : total.maxima[r];
    const float keep = exp_one(total.maxima[r] - top), add = exp_one(part.maxima[r] - top);
    total.maxima[r] = top;
    total.weights[r] = total.weights[r] * keep + part.weights[r] * add;
    for (int64_t d = 0; d < dim; d += 16) {
      float* sums = total.sums + r * dim + d;
      store(sums, fma(load(sums), set1(keep), load(part.sums + r * dim + d) * set1(add)));
    }
  }
}

static void write_out(const AttendArgs& args, const AttendPiece& piece, int64_t heads, const AttendState& state) {
  const int64_t dim = args.kv.dim;
  for (int64_t r = 0; r < piece.num_tokens * heads; ++r) {
    const int64_t head = piece.kv_head * heads + r % heads;
    float factor = 1.0f / state.weights[r];
    if (args.sinks != nullptr) {
      const float sink = args.sinks[head];
      const float top = sink > state.maxima[r] ? sink : state.maxima[r];
      const float keep = exp_one(state.maxima[r] - top);
      factor = keep / (state.weights[r] * keep + exp_one(sink - top));
    }
    float* out = args.out + (piece.row + r / heads) * args.out_stride + head * args.kv.head_dim;
    for (int64_t d = 0; d < dim; d += 16) {
      const F32 result = load(state.sums + r * dim + d) * set1(factor);
      if (d + 16 <= args.kv.head_dim) {
        store(out + d, result);
      } else {
        store_n(out + d, args.kv.head_dim - d, result);
      }
    }
  }
}

static void copy_floats(float* to, const float* from, int64_t count) {
  memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

template <class Cache>
static void attend_typed(const AttendArgs& args, const AttendPiece& piece, const AttendScratch& scratch) {
  const int64_t dim = args.kv.dim, heads = args.num_heads / args.kv.num_kv_heads;
  const int64_t rows = piece.num_tokens * heads, floats = attend_state_floats(rows, dim);
  auto* queries = reinterpret_cast<typename Cache::Query*>(scratch.queries);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = piece.kv_head * heads + r % heads;
    const float* q = args.q + (piece.row + r / heads) * args.q_stride + head * args.kv.head_dim;
    for (int64_t d = 0; d < dim; d += 16) {
      Cache::split_query(load_padded(q, d, args.kv.head_dim), dim, queries + r * Cache::kQueryParts * dim + d);
    }
  }
  const AttendState part = attend_state(scratch.part, rows, dim);
  const AttendState total = attend_state(scratch.total, rows, dim);
  for (int64_t p = piece.part_begin; p < piece.part_end; ++p) {
    attend_part<Cache>(args, piece, p, heads, scratch);
    if (piece.partials != nullptr) {
      copy_floats(piece.partials + (p - piece.part_begin) * floats, scratch.part, floats);
    } else if (p == piece.part_begin) {
      copy_floats(scratch.total, scratch.part, floats);
    } else {
      merge_part(rows, dim, total, part);
    }
  }
  if (piece.partials == nullptr) write_out(args, piece, heads, total);
}

static void attend(const AttendArgs& args, const AttendPiece& piece, void* memory) {
  const int64_t rows = piece.num_tokens * (args.num_heads / args.kv.num_kv_heads);
  const AttendScratch scratch = attend_scratch(memory, rows, args.kv.dim);
  if (args.kv.type == KVType::kBF16) {
    attend_typed<CacheBF16>(args, piece, scratch);
  } else {
    attend_typed<CacheF32>(args, piece, scratch);
  }
}

static void attend_merge(const AttendArgs& args, const AttendPiece& piece, void* memory) {
  const int64_t dim = args.kv.dim, heads = args.num_heads / args.kv.num_kv_heads;
  const int64_t rows = piece.num_tokens * heads, floats = attend_state_floats(rows, dim);
  const AttendScratch scratch = attend_scratch(memory, rows, dim);
  const AttendState total = attend_state(scratch.total, rows, dim);
  copy_floats(scratch.total, piece.partials, floats);
  for (int64_t p = 1; p < piece.part_end - piece.part_begin; ++p) {
    merge_part(rows, dim, total, attend_state(piece.partials + p * floats, rows, dim));
  }
  write_out(args, piece, heads, total);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

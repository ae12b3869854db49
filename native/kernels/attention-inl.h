// Causal attention through a block table, with a running maximum and sum (the online softmax of FlashAttention,
// arXiv 2205.14135, over paged KV, arXiv 2309.06180).
//
// Batch invariance: a query's keys are taken in steps of 64 and summed from scratch in parts of 256, both at absolute
// positions; within a step every sum has one order. Keys a query must not see have weight exactly 0, and a step or
// part it does not see at all leaves its state as it was, so a query's result does not depend on the queries it shares
// a piece with. Slots past the sequence's end may hold anything, NaN too: they are never multiplied.
#pragma once

#include "kernels.h"
#include "kernels/attend-state-inl.h"
#include "kernels/attend-tile-inl.h"
#include "kernels/attend-weigh-inl.h"
#include "kernels/kv-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

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

// Causal attention through a block table, with a running maximum and sum (the online softmax of FlashAttention,
// arXiv 2205.14135, over paged KV, arXiv 2309.06180).
//
// Batch invariance: a query's keys are taken in steps of 64 and summed from scratch in parts of 256, both at absolute
// positions; within a step every sum has one order. Keys a query must not see have weight exactly 0, and a step or
// part it does not see at all leaves its state as it was, so a query's result does not depend on the queries it shares
// a piece with. Slots past the sequence's end may hold anything, NaN too: they are never multiplied.
#pragma once

#include "kernels.h"
#include "kernels/attend-int8-inl.h"
#include "kernels/attend-state-inl.h"
#include "kernels/attend-tile-inl.h"
#include "kernels/attend-weigh-inl.h"
#include "kernels/kv-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// What a piece's queries see: keys [lowest, end), of each query those up to its own position.
struct AttendView {
  int64_t rows;    // query tokens x heads
  int64_t heads;
  int64_t window;  // 0: none
  int64_t lowest;  // of the first query
  int64_t end;     // past the last query's position
};

OCTAVO_SIMD AttendView attend_view(const AttendArgs& args, const AttendPiece& piece) {
  AttendView view;
  view.heads = args.num_heads / args.kv.num_kv_heads;
  view.rows = piece.num_tokens * view.heads;
  view.window = piece.members == nullptr ? args.window : 0;  // members see all keys of their parts
  view.lowest = view.window > 0 && piece.position + 1 > view.window ? piece.position + 1 - view.window : 0;
  view.end = piece.position + piece.num_tokens;
  return view;
}

OCTAVO_SIMD void find_tiles(const KVLayer& kv, const AttendPiece& piece, int64_t first_key, int64_t first_tile,
                            int64_t end_tile, const uint8_t** tiles) {
  for (int64_t t = first_tile; t < end_tile; ++t) {
    const int64_t key = first_key + t * kTokensPerTile;
    const int64_t block = piece.block_table[key / kv.block_size];
    tiles[t] = kv_tile(kv, block, piece.kv_head, key % kv.block_size / kTokensPerTile);
  }
}

// The step at `first_key`; its tiles are those that any query of the piece may see.
OCTAVO_SIMD AttendStep attend_step(const KVLayer& kv, const AttendPiece& piece, const AttendView& view,
                                   int64_t first_key) {
  AttendStep step;
  step.value_offset = kv_value_offset(kv);
  const int64_t begin = view.lowest > first_key ? view.lowest - first_key : 0;
  step.num_keys = view.end - first_key < kKeysPerStep ? view.end - first_key : kKeysPerStep;
  step.first_tile = begin / kTokensPerTile;
  step.end_tile = (step.num_keys + kTokensPerTile - 1) / kTokensPerTile;
  find_tiles(kv, piece, first_key, step.first_tile, step.end_tile, step.tiles);
  return step;
}

// Where the first step of a piece begins, and of any part of it.
OCTAVO_SIMD int64_t first_key_of(const AttendView& view, int64_t part) {
  const int64_t key = part * kKeysPerPart;
  return view.lowest > key ? view.lowest / kKeysPerStep * kKeysPerStep : key;
}

// What is fetched beside `step`, for each of its tiles: that of `after`.
OCTAVO_SIMD void look_ahead(AttendStep* step, const AttendStep* after) {
  for (int64_t t = step->first_tile; t < step->end_tile; ++t) {
    step->ahead[t] = after != nullptr && t >= after->first_tile && t < after->end_tile ? after->tiles[t] : step->tiles[t];
  }
}

template <class Cache>
static void attend_one_step(const AttendArgs& args, const AttendPiece& piece, const AttendView& view, int64_t first_key,
                            AttendStep step, const AttendScratch& scratch, const AttendState& state) {
  const int64_t dim = args.kv.dim, query_width = Cache::kQueryParts * dim;
  const auto* queries = reinterpret_cast<const typename Cache::Query*>(scratch.queries);
  auto* chances = reinterpret_cast<typename Cache::Chance*>(scratch.chances);
  const bool whole = piece.position + 1 >= first_key + kKeysPerStep &&
                     (view.window == 0 || view.end - view.window <= first_key);
  step.fetch = true;
  step = ready_step(Cache{}, step, dim, scratch.room);
  for (int64_t first = 0; first < view.rows; first += kBlockRows) {
    const int64_t rows = view.rows - first < kBlockRows ? view.rows - first : kBlockRows;
    score_step(Cache{}, queries + first * query_width, dim, step, rows, scratch.scores);
    const auto range_of = [&](int64_t row) {
      const int64_t end = piece.position + (first + row) / view.heads + 1 - first_key;
      return AttendRange{view.window > 0 ? end - view.window : 0, end};
    };
    weigh_rows<Cache>(step, rows, dim, args.softcap, whole, range_of, scratch.scores, state.maxima + first,
                      scratch.lanes + 16 * first, state.sums + first * dim, chances);
    value_step(Cache{}, chances, step, dim, rows, state.sums + first * dim);
    step.fetch = false;
  }
}

// state = that of the piece's queries over the keys of part `part`. `next`: the piece after it, or null.
template <class Cache>
static void attend_part(const AttendArgs& args, const AttendPiece& piece, const AttendView& view, int64_t part,
                        const AttendPiece* next, const AttendScratch& scratch, const AttendState& state) {
  const int64_t dim = args.kv.dim;
  for (int64_t i = 0; i < view.rows * dim; i += 16) store(state.sums + i, zero());
  for (int64_t r = 0; r < view.rows; ++r) {
    state.maxima[r] = kLowest;
    store(scratch.lanes + 16 * r, zero());
  }
  const int64_t piece_end = piece.part_end * kKeysPerPart < view.end ? piece.part_end * kKeysPerPart : view.end;
  const int64_t part_end = (part + 1) * kKeysPerPart < view.end ? (part + 1) * kKeysPerPart : view.end;
  int64_t key = first_key_of(view, part);
  AttendStep step;
  if (key < part_end) step = attend_step(args.kv, piece, view, key);
  while (key < part_end) {
    AttendStep after;
    const bool more = key + kKeysPerStep < piece_end;
    if (more) {
      after = attend_step(args.kv, piece, view, key + kKeysPerStep);
    } else if (next != nullptr) {
      const AttendView next_view = attend_view(args, *next);
      after = attend_step(args.kv, *next, next_view, first_key_of(next_view, next->part_begin));
    }
    look_ahead(&step, more || next != nullptr ? &after : nullptr);
    attend_one_step<Cache>(args, piece, view, key, step, scratch, state);
    key += kKeysPerStep;
    step = after;
  }
  for (int64_t r = 0; r < view.rows; ++r) state.weights[r] = sum(load(scratch.lanes + 16 * r));
}

// Rounds the query heads of one KV head of `num_tokens` tokens.
template <class Cache>
static typename Cache::Query* write_queries(const AttendArgs& args, int64_t kv_head, int64_t row, int64_t num_tokens,
                                            const AttendScratch& scratch, typename Cache::Query* queries) {
  const int64_t dim = args.kv.dim, head_dim = args.kv.head_dim, heads = args.num_heads / args.kv.num_kv_heads;
  const F32 scale = set1(args.softcap > 0.0f ? args.scale : args.scale * kLog2E);
  for (int64_t r = 0; r < num_tokens * heads; ++r) {
    const float* q = args.q + (row + r / heads) * args.q_stride + (kv_head * heads + r % heads) * head_dim;
    for (int64_t d = 0; d < dim; d += 16) store(scratch.scaled + d, load_padded(q, d, head_dim) * scale);
    Cache::write_query(scratch.scaled, dim, dim, queries);
    queries += Cache::kQueryParts * dim;
  }
  return queries;
}

// Parts shared by several sequences: each member's rows of the states go to its own place. Where they begin with part 0,
// the parts are merged here, in order, and the members get the one state of all.
template <class Cache>
static void attend_members(const AttendArgs& args, const AttendPiece& piece, const AttendPiece* next,
                           const AttendScratch& scratch) {
  const int64_t dim = args.kv.dim;
  const AttendView view = attend_view(args, piece);
  auto* queries = reinterpret_cast<typename Cache::Query*>(scratch.queries);
  for (int64_t m = 0; m < piece.num_members; ++m) {
    const AttendMember& member = piece.members[m];
    queries = write_queries<Cache>(args, piece.kv_head, member.row, member.num_tokens, scratch, queries);
  }
  const bool merge = piece.part_begin == 0;
  for (int64_t p = piece.part_begin; p < piece.part_end; ++p) {
    float* memory = merge && p == 0 ? scratch.total : scratch.part;
    attend_part<Cache>(args, piece, view, p, next, scratch, attend_state(memory, view.rows, dim));
    if (merge) {
      const AttendState total = attend_state(scratch.total, view.rows, dim);
      if (p > 0) merge_part(view.rows, dim, total, attend_state(memory, view.rows, dim));
      if (p + 1 < piece.part_end) continue;
      memory = scratch.total;
    }
    int64_t first = 0;
    for (int64_t m = 0; m < piece.num_members; ++m) {
      const AttendMember& member = piece.members[m];
      const int64_t rows = member.num_tokens * view.heads;
      float* to = piece.partials + member.partials + piece.kv_head * member.partials_stride;
      take_rows(view.rows, dim, memory, first, rows, to + p * attend_state_floats(rows, dim));
      first += rows;
    }
  }
}

template <class Cache>
static void attend_typed(const AttendArgs& args, const AttendPiece& piece, const AttendPiece* next,
                         const AttendScratch& scratch) {
  if (piece.members != nullptr) return attend_members<Cache>(args, piece, next, scratch);
  const int64_t dim = args.kv.dim;
  const AttendView view = attend_view(args, piece);
  write_queries<Cache>(args, piece.kv_head, piece.row, piece.num_tokens, scratch,
                       reinterpret_cast<typename Cache::Query*>(scratch.queries));
  const AttendState total = attend_state(scratch.total, view.rows, dim);
  for (int64_t p = piece.part_begin; p < piece.part_end; ++p) {
    float* memory = scratch.part;
    if (piece.partials != nullptr) {
      memory = piece.partials + (p - piece.part_begin) * attend_state_floats(view.rows, dim);
    } else if (p == piece.part_begin) {
      memory = scratch.total;
    }
    const AttendState state = attend_state(memory, view.rows, dim);
    attend_part<Cache>(args, piece, view, p, next, scratch, state);
    if (memory == scratch.part) merge_part(view.rows, dim, total, state);
  }
  if (piece.partials == nullptr) write_out(args, piece, view.heads, total);
}

static void attend(const AttendArgs& args, const AttendPiece& piece, const AttendPiece* next, void* memory) {
  const int64_t rows = piece.num_tokens * (args.num_heads / args.kv.num_kv_heads);
  const AttendScratch scratch = attend_scratch(memory, rows, args.kv.dim);
  switch (args.kv.type) {
    case KVType::kBF16: attend_typed<CacheBF16>(args, piece, next, scratch); break;
    case KVType::kF32: attend_typed<CacheF32>(args, piece, next, scratch); break;
    case KVType::kInt8: attend_typed<CacheInt8>(args, piece, next, scratch); break;
  }
}

static void attend_merge(const AttendArgs& args, const AttendPiece& piece, void* memory) {
  const int64_t dim = args.kv.dim, heads = args.num_heads / args.kv.num_kv_heads;
  const int64_t rows = piece.num_tokens * heads, floats = attend_state_floats(rows, dim);
  const AttendScratch scratch = attend_scratch(memory, rows, dim);
  const AttendState total = attend_state(scratch.total, rows, dim);
  memcpy(scratch.total, piece.partials, static_cast<size_t>(floats) * sizeof(float));
  for (int64_t p = 1; p < piece.part_end - piece.part_begin; ++p) {
    merge_part(rows, dim, total, attend_state(piece.partials + p * floats, rows, dim));
  }
  write_out(args, piece, heads, total);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

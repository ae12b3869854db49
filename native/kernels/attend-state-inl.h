// What attention keeps: a thread's scratch, the state of a part of the keys, and how states join.
//
// Scores are in powers of two: what q is multiplied with holds log2(e), and a maximum is one of base-two logarithms.
#pragma once

#include "kernels.h"
#include "kernels/attend-int8-inl.h"
#include "kernels/attend-tile-inl.h"
#include "kernels/math-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int kExactDegree = 6;  // of the series where states join

struct AttendScratch {
  uint8_t* queries;  // [rows][parts][dim] of Query
  uint8_t* chances;  // [rows][64] of Chance
  float* scores;     // [rows][64]
  float* lanes;      // [rows][16] sums of weights
  float* scaled;     // [dim] one row of q
  float* part;       // state of the part at hand
  float* total;      // state of the parts before it
  float* room;       // of int8: the tiles of a step as float32, or its scales
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
  scratch.chances = reinterpret_cast<uint8_t*>(take(kBlockRows * kKeysPerStep * 4));
  scratch.scores = reinterpret_cast<float*>(take(kBlockRows * kKeysPerStep * 4));
  scratch.lanes = reinterpret_cast<float*>(take(rows * 64));
  scratch.scaled = reinterpret_cast<float*>(take(dim * 4));
  scratch.part = reinterpret_cast<float*>(take(attend_state_floats(rows, dim) * 4));
  scratch.total = reinterpret_cast<float*>(take(attend_state_floats(rows, dim) * 4));
  scratch.room = reinterpret_cast<float*>(take(CacheInt8::room_floats(dim) * 4));
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
  float* maxima;   // [rows] what weights are relative to: near the largest score
  float* weights;  // [rows] sums of weights
};

OCTAVO_SIMD AttendState attend_state(float* memory, int64_t rows, int64_t dim) {
  return {memory, memory + rows * dim, memory + rows * dim + rows};
}

OCTAVO_SIMD float power_one(float x) {
  float lanes[16];
  store(lanes, power_of_two<kExactDegree>(set1(x)));
  return lanes[0];
}

// total = total joined with part, in this order.
static void merge_part(int64_t rows, int64_t dim, const AttendState& total, const AttendState& part) {
  for (int64_t first = 0; first < rows; first += 16) {
    const int64_t count = rows - first < 16 ? rows - first : 16;
    float keep[16], add[16];
    const F32 old_top = load_n(total.maxima + first, count), part_top = load_n(part.maxima + first, count);
    const F32 top = max(old_top, part_top);
    const F32 keeps = power_of_two<kExactDegree>(old_top - top), adds = power_of_two<kExactDegree>(part_top - top);
    store_n(total.maxima + first, count, top);
    store_n(total.weights + first, count,
            fma(load_n(total.weights + first, count), keeps, load_n(part.weights + first, count) * adds));
    store(keep, keeps);
    store(add, adds);
    for (int64_t r = 0; r < count; ++r) {
      float* sums = total.sums + (first + r) * dim;
      const float* added = part.sums + (first + r) * dim;
      for (int64_t d = 0; d < dim; d += 16) {
        store(sums + d, fma(load(sums + d), set1(keep[r]), load(added + d) * set1(add[r])));
      }
    }
  }
}

// Rows [first, first + count) of a state of `rows` rows, as a state of their own.
static void take_rows(int64_t rows, int64_t dim, float* from, int64_t first, int64_t count, float* to) {
  const AttendState all = attend_state(from, rows, dim), some = attend_state(to, count, dim);
  memcpy(some.sums, all.sums + first * dim, static_cast<size_t>(count * dim) * sizeof(float));
  memcpy(some.maxima, all.maxima + first, static_cast<size_t>(count) * sizeof(float));
  memcpy(some.weights, all.weights + first, static_cast<size_t>(count) * sizeof(float));
}

static void write_out(const AttendArgs& args, const AttendPiece& piece, int64_t heads, const AttendState& state) {
  const int64_t dim = args.kv.dim;
  for (int64_t r = 0; r < piece.num_tokens * heads; ++r) {
    const int64_t head = piece.kv_head * heads + r % heads;
    float factor = 1.0f / state.weights[r];
    if (args.sinks != nullptr) {
      const float sink = args.sinks[head] * kLog2E;
      const float top = sink > state.maxima[r] ? sink : state.maxima[r];
      const float keep = power_one(state.maxima[r] - top);
      factor = keep / (state.weights[r] * keep + power_one(sink - top));
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

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

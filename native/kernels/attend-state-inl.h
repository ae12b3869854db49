// What attention keeps: a thread's scratch, the state of a part of the keys, and how states join.
#pragma once

#include "kernels.h"
#include "kernels/attend-cache-inl.h"
#include "kernels/math-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

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

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

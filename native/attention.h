// What the attention kernels are told: where a layer's KV lies, and which queries one thread is to serve.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

enum class KVType : uint8_t { kBF16, kF32, kInt8 };

constexpr int64_t kTokensPerTile = 16;  // one register of scores; block sizes are multiples of it
constexpr int64_t kKeysPerStep = 64;    // scores, maximum and sums advance by so many keys, at absolute positions
constexpr int64_t kKeysPerPart = 256;   // parts are summed from scratch, at absolute positions, and merged in order
constexpr int64_t kInt8ScaleBytes = 64;  // of one tile, K and V
constexpr float kLeastInt8 = 1e-30f;
constexpr int64_t kRowsPerUnit = 32;    // aim for query tokens x heads of one KV head served together
constexpr int64_t kRowsPerGroup = 96;   // at most, of the sequences that share a prefix

// One layer of one block, for every KV head: K, then V.
//
//   K bf16: tile of 16 tokens x [pair of dimensions][16 tokens][2]     f32: [dimension][16 tokens]
//   V bf16: tile of 16 tokens x [pair of tokens][dimension][2]         f32: [16 tokens][dimension]
//
// int8: tiles of 16 tokens, each K, then V, then their scales, one a token:
//
//   K: uint8 [4 dimensions][16 tokens][4], q + 128     V: int8 [4 tokens][dimension][4]     bf16 [16] of K, [16] of V
//
// K and the queries that meet it are rotated first: every 16 dimensions are multiplied by the Hadamard matrix / 4, which
// changes no score, and spreads the few dimensions in which keys are large over all, so that the scale fits the rest too.
// value = scale * q; the scale is max |value| / 127, rounded up to bf16, NaN where a value is no finite number. A token
// whose values all lie below kLeastInt8 is zero.
struct KVLayer {
  uint8_t* base;         // block 0, this layer, KV head 0
  int64_t block_stride;  // bytes from block to block
  int64_t head_stride;   // bytes from KV head to KV head
  int64_t block_size;    // tokens
  int64_t num_kv_heads;
  int64_t head_dim;      // of q, k, v and out
  int64_t dim;           // head_dim rounded up to 16: what is stored, zeros past head_dim
  KVType type;
};

struct AttendArgs {
  KVLayer kv;
  const float* q;  // [tokens, num_heads * head_dim]
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  int64_t num_heads;
  float scale;
  float softcap;       // 0: none
  int64_t window;      // 0: none; else keys in (p - window, p]
  const float* sinks;  // null, or [num_heads]
};

// Query tokens of one of several sequences served together. State of part p of its rows goes to
// partials + kv_head * partials_stride + p * attend_state_floats(rows, dim), in floats from the piece's partials; where
// the piece begins with part 0, that of all its parts goes to the place of the last.
struct AttendMember {
  int64_t row;
  int64_t num_tokens;
  int64_t partials;
  int64_t partials_stride;
};

// Query tokens [row, row + num_tokens) of one sequence at consecutive positions, all query heads of one KV head, over
// the parts [part_begin, part_end) of the sequence's keys. With members: num_tokens is theirs together, all of which see
// every key of the parts, which lie in the same blocks for each.
struct AttendPiece {
  const int32_t* block_table;
  int64_t kv_head;
  int64_t row;
  int64_t num_tokens;
  int64_t position;  // of the first
  int64_t part_begin;
  int64_t part_end;
  float* partials;  // null: the piece is whole and writes `out`; else state of part_begin, part_begin + 1, ... goes here
  const AttendMember* members;  // null: one sequence
  int64_t num_members;
};

// Bytes of K and V of 16 tokens of one KV head, `dim` as in KVLayer.
constexpr int64_t kv_tile_pair_bytes(KVType type, int64_t dim) {
  switch (type) {
    case KVType::kBF16: return 2 * kTokensPerTile * dim * 2;
    case KVType::kF32: return 2 * kTokensPerTile * dim * 4;
    case KVType::kInt8: return 2 * kTokensPerTile * dim + kInt8ScaleBytes;
  }
  return 0;
}

// Floats of one part's state of `rows` query rows: [rows][dim] sums, [rows] maxima, [rows] sums of weights.
constexpr int64_t attend_state_floats(int64_t rows, int64_t dim) { return rows * (dim + 2); }

}  // namespace octavo

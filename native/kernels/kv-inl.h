// Writing keys and values into the arena. The layouts are drawn in attention.h.
//
// Stores are single values, never a read-modify-write of a register: neighbouring tokens of a block may be written by
// different threads.
#pragma once

#include "kernels.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kv_value_bytes(KVType type) {
  return type == KVType::kInt8 ? 1 : type == KVType::kBF16 ? 2 : 4;
}

// Of K, or of V.
OCTAVO_SIMD int64_t kv_tile_bytes(const KVLayer& kv) { return kTokensPerTile * kv.dim * kv_value_bytes(kv.type); }

// K of the 16-token tile `tile` (counted inside the block); V lies `kv_value_offset` after it.
OCTAVO_SIMD uint8_t* kv_tile(const KVLayer& kv, int64_t block, int64_t kv_head, int64_t tile) {
  const int64_t stride = kv.type == KVType::kInt8 ? kv_tile_pair_bytes(kv.type, kv.dim) : kv_tile_bytes(kv);
  return kv.base + block * kv.block_stride + kv_head * kv.head_stride + tile * stride;
}
OCTAVO_SIMD int64_t kv_value_offset(const KVLayer& kv) {
  return kv.type == KVType::kInt8 ? kv_tile_bytes(kv) : kv.block_size * kv.dim * kv_value_bytes(kv.type);
}

OCTAVO_SIMD void write_token_bf16(const KVLayer& kv, const float* k, const float* v, int64_t lane, uint8_t* k_tile,
                                  uint8_t* v_tile) {
  uint16_t* values = reinterpret_cast<uint16_t*>(v_tile) + (lane / 2) * kv.dim * 2 + lane % 2;
  for (int64_t d = 0; d < kv.dim; d += 16) {
    uint16_t rounded[16];
    store_bf16(rounded, load_padded(k, d, kv.head_dim));
    for (int64_t i = 0; i < 8; ++i) {
      __builtin_memcpy(k_tile + ((d / 2 + i) * kTokensPerTile + lane) * 4, rounded + 2 * i, 4);
    }
    store_bf16(rounded, load_padded(v, d, kv.head_dim));
    for (int64_t i = 0; i < 16; ++i) values[(d + i) * 2] = rounded[i];
  }
}

OCTAVO_SIMD void write_token_f32(const KVLayer& kv, const float* k, const float* v, int64_t lane, uint8_t* k_tile,
                                 uint8_t* v_tile) {
  float* keys = reinterpret_cast<float*>(k_tile) + lane;
  float* values = reinterpret_cast<float*>(v_tile) + lane * kv.dim;
  for (int64_t d = 0; d < kv.dim; ++d) keys[d * kTokensPerTile] = d < kv.head_dim ? k[d] : 0.0f;
  for (int64_t d = 0; d < kv.dim; ++d) values[d] = d < kv.head_dim ? v[d] : 0.0f;
}

#ifndef OCTAVO_BUTTERFLY
template <int kStride>
OCTAVO_SIMD F32 butterfly(F32 x) {
  float from[16], to[16];
  store(from, x);
  for (int i = 0; i < 16; i += 2 * kStride) {
    for (int j = i; j < i + kStride; ++j) {
      to[j] = from[j] + from[j + kStride];
      to[j + kStride] = from[j] - from[j + kStride];
    }
  }
  return load(to);
}
#endif

// 16 dimensions times the Hadamard matrix / 4: its own inverse.
OCTAVO_SIMD F32 rotate(F32 x) { return butterfly<1>(butterfly<2>(butterfly<4>(butterfly<8>(x)))) * set1(0.25f); }

template <bool kRotated>
OCTAVO_SIMD F32 load_int8_source(const float* x, int64_t at, int64_t width) {
  const F32 values = load_padded(x, at, width);
  return kRotated ? rotate(values) : values;
}

struct KVScale {
  uint16_t stored;  // bf16
  float inverse;    // 0: every q is 0
};

template <bool kRotated>
OCTAVO_SIMD KVScale kv_scale(const float* x, int64_t width) {
  F32 top = zero(), finite = zero();
  for (int64_t d = 0; d < width; d += 16) {
    const F32 values = load_int8_source<kRotated>(x, d, width);
    top = max(top, abs(values));
    finite = fma(values, zero(), finite);
  }
  const float largest = max_lane(top) + sum(finite);
  if (largest < kLeastInt8) return {0, 0.0f};
  if (!(largest <= 3.402823466e38f)) return {0x7fc0, 0.0f};
  uint32_t bits;
  const float exact = largest / 127.0f;
  __builtin_memcpy(&bits, &exact, 4);
  bits = (bits + 0xffffu) & 0xffff0000u;
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  return {static_cast<uint16_t>(bits >> 16), 1.0f / scale};
}

// q of 16 values, plus `offset`, as bytes.
template <bool kRotated>
OCTAVO_SIMD void round_kv(const float* x, int64_t at, int64_t width, float inverse, int32_t offset, uint8_t* out) {
  float lanes[16];
  const F32 values = round_nearest(load_int8_source<kRotated>(x, at, width) * set1(inverse));
  store(lanes, inverse == 0.0f ? zero() : values);
  for (int64_t i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(static_cast<int32_t>(lanes[i]) + offset);
}

OCTAVO_SIMD void write_token_int8(const KVLayer& kv, const float* k, const float* v, int64_t lane, uint8_t* tile) {
  const int64_t tile_bytes = kv_tile_bytes(kv);
  const KVScale k_scale = kv_scale<true>(k, kv.head_dim), v_scale = kv_scale<false>(v, kv.head_dim);
  uint8_t* values = tile + tile_bytes + (lane / 4) * kv.dim * 4 + lane % 4;
  for (int64_t d = 0; d < kv.dim; d += 16) {
    uint8_t rounded[16];
    round_kv<true>(k, d, kv.head_dim, k_scale.inverse, 128, rounded);
    for (int64_t i = 0; i < 4; ++i) {
      __builtin_memcpy(tile + (d / 4 + i) * 64 + lane * 4, rounded + 4 * i, 4);
    }
    round_kv<false>(v, d, kv.head_dim, v_scale.inverse, 0, rounded);
    for (int64_t i = 0; i < 16; ++i) values[(d + i) * 4] = rounded[i];
  }
  auto* scales = reinterpret_cast<uint16_t*>(tile + 2 * tile_bytes);
  scales[lane] = k_scale.stored;
  scales[16 + lane] = v_scale.stored;
}

static void write_kv(const KVLayer& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                     const int64_t* slots, int64_t rows) {
  const int64_t value_offset = kv_value_offset(kv);
  for (int64_t r = 0; r < rows; ++r) {
    if (slots[r] < 0) continue;
    const int64_t block = slots[r] / kv.block_size, offset = slots[r] % kv.block_size;
    for (int64_t h = 0; h < kv.num_kv_heads; ++h) {
      uint8_t* tile = kv_tile(kv, block, h, offset / kTokensPerTile);
      const float* key = k + r * k_stride + h * kv.head_dim;
      const float* value = v + r * v_stride + h * kv.head_dim;
      if (kv.type == KVType::kInt8) {
        write_token_int8(kv, key, value, offset % kTokensPerTile, tile);
      } else if (kv.type == KVType::kBF16) {
        write_token_bf16(kv, key, value, offset % kTokensPerTile, tile, tile + value_offset);
      } else {
        write_token_f32(kv, key, value, offset % kTokensPerTile, tile, tile + value_offset);
      }
    }
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

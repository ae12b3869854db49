// Writing keys and values into the arena. The layouts are drawn in attention.h.
//
// Stores are single values, never a read-modify-write of a register: neighbouring tokens of a block may be written by
// different threads.
#pragma once

#include "kernels.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kv_value_bytes(KVType type) { return type == KVType::kBF16 ? 2 : 4; }

OCTAVO_SIMD int64_t kv_tile_bytes(const KVLayer& kv) { return kTokensPerTile * kv.dim * kv_value_bytes(kv.type); }

// K of the 16-token tile `tile` (counted inside the block); V lies `kv_value_offset` after it.
OCTAVO_SIMD uint8_t* kv_tile(const KVLayer& kv, int64_t block, int64_t kv_head, int64_t tile) {
  return kv.base + block * kv.block_stride + kv_head * kv.head_stride + tile * kv_tile_bytes(kv);
}
OCTAVO_SIMD int64_t kv_value_offset(const KVLayer& kv) { return kv.block_size * kv.dim * kv_value_bytes(kv.type); }

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
      if (kv.type == KVType::kBF16) {
        write_token_bf16(kv, key, value, offset % kTokensPerTile, tile, tile + value_offset);
      } else {
        write_token_f32(kv, key, value, offset % kTokensPerTile, tile, tile + value_offset);
      }
    }
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

// The paged KV memory of one executor: blocks of equal bytes in one reserved range of addresses.
//
//   block b  =  [layer][KV head][K tiles, V tiles]     (attention.h draws the tiles)
//
// All layers of a KV group, K and V, of one block are contiguous; groups share the blocks. A page of memory is taken
// when first written and given back by `release`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "attention.h"

namespace octavo {

class Arena {
 public:
  // `num_layers`: of one KV group. Throws std::invalid_argument for sizes that are not positive, a block size that is
  // not a multiple of 16, or blocks beyond the address space; std::bad_alloc.
  Arena(int64_t num_blocks, int64_t block_size, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
        KVType type);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_size() const { return block_size_; }
  int64_t num_layers() const { return num_layers_; }
  size_t block_bytes() const { return block_bytes_; }
  KVLayer layer(int64_t index) const;

  // All sources are read before any target is written. Throws std::out_of_range, having copied nothing.
  void copy(const std::vector<std::pair<int64_t, int64_t>>& source_target);
  void release(std::vector<int64_t> blocks);  // they read as anything afterwards
  const uint8_t* block(int64_t id) const { return data_ + checked(id) * block_bytes_; }
  uint8_t* block(int64_t id) { return data_ + checked(id) * block_bytes_; }

 private:
  size_t checked(int64_t id) const;

  int64_t num_blocks_, block_size_, num_layers_, num_kv_heads_, head_dim_;
  KVType type_;
  size_t block_bytes_;
  uint8_t* data_;
};

}  // namespace octavo

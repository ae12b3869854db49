#include "arena.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "memory.h"

namespace octavo {

namespace {

int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace

Arena::Arena(int64_t num_blocks, int64_t block_size, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim,
             KVType type)
    : num_blocks_(num_blocks),
      block_size_(block_size),
      num_layers_(num_layers),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      type_(type) {
  if (num_blocks < 1 || block_size < 1 || num_layers < 1 || num_kv_heads < 1 || head_dim < 1) {
    throw std::invalid_argument("an arena needs at least one block, token, layer, head and dimension");
  }
  if (block_size % kTokensPerTile != 0) {
    throw std::invalid_argument("block size " + std::to_string(block_size) + " is not a multiple of 16");
  }
  const double bytes = static_cast<double>(num_layers) * static_cast<double>(num_kv_heads) *
                       static_cast<double>(block_size / kTokensPerTile) *
                       static_cast<double>(kv_tile_pair_bytes(type, padded(head_dim)));
  if (bytes * static_cast<double>(num_blocks) > 1.0e14) throw std::invalid_argument("the arena exceeds 100 TB");
  block_bytes_ = static_cast<size_t>(bytes);
  data_ = static_cast<uint8_t*>(reserve_memory(block_bytes_ * static_cast<size_t>(num_blocks)));
  keep_small_pages(data_, block_bytes_ * static_cast<size_t>(num_blocks));
}

Arena::~Arena() { unmap_memory(data_, block_bytes_ * static_cast<size_t>(num_blocks_)); }

size_t Arena::checked(int64_t id) const {
  if (id < 0 || id >= num_blocks_) {
    throw std::out_of_range("block " + std::to_string(id) + " of " + std::to_string(num_blocks_));
  }
  return static_cast<size_t>(id);
}

KVLayer Arena::layer(int64_t index) const {
  if (index < 0 || index >= num_layers_) throw std::out_of_range("no such layer in the arena");
  const int64_t layer_bytes = static_cast<int64_t>(block_bytes_) / num_layers_;
  return {data_ + index * layer_bytes, static_cast<int64_t>(block_bytes_), layer_bytes / num_kv_heads_, block_size_,
          num_kv_heads_, head_dim_, padded(head_dim_), type_};
}

void Arena::copy(const std::vector<std::pair<int64_t, int64_t>>& source_target) {
  std::unordered_set<int64_t> targets;
  for (const auto& [source, target] : source_target) {
    checked(source);
    checked(target);
    targets.insert(target);
  }
  std::unordered_map<int64_t, std::vector<uint8_t>> staged;  // sources that are overwritten in the same step
  for (const auto& pair : source_target) {
    if (targets.count(pair.first) != 0 && staged.count(pair.first) == 0) {
      staged.emplace(pair.first, std::vector<uint8_t>(block(pair.first), block(pair.first) + block_bytes_));
    }
  }
  for (const auto& [source, target] : source_target) {
    if (source == target) continue;
    const auto held = staged.find(source);
    std::memcpy(block(target), held == staged.end() ? block(source) : held->second.data(), block_bytes_);
  }
}

void Arena::release(std::vector<int64_t> blocks) {
  for (const int64_t id : blocks) checked(id);
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 0; i < blocks.size();) {  // one call a run of neighbours, so that pages they share go too
    size_t end = i + 1;
    while (end < blocks.size() && blocks[end] <= blocks[end - 1] + 1) ++end;
    const size_t bytes = static_cast<size_t>(blocks[end - 1] - blocks[i] + 1) * block_bytes_;
    discard_memory(block(blocks[i]), bytes);
    i = end;
  }
}

}  // namespace octavo

#include "prefix_groups.h"

#include <algorithm>

namespace octavo {

namespace {

int64_t blocks_per_part(const StepQueries& step) { return std::max<int64_t>(1, kKeysPerPart / step.block_size); }

// The first block of a part; a part lies in one block where blocks are larger.
const int32_t* blocks_of(const StepQueries& step, int64_t seq, int64_t part) {
  return step.table(seq) + part * kKeysPerPart / step.block_size;
}

}  // namespace

void PrefixGroups::clear(int64_t num_seqs) {
  candidates_.clear();
  ranges_.clear();
  nodes_.clear();
  members_.clear();
  shared_parts_.assign(static_cast<size_t>(num_seqs), 0);
}

void PrefixGroups::find(const StepQueries& step, int64_t heads, int64_t window) {
  clear(step.num_seqs);
  if (kKeysPerPart % step.block_size != 0 && step.block_size % kKeysPerPart != 0) return;
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    const int64_t queries = step.num_queries(seq), length = step.seq_lens[seq];
    const int64_t full_parts = (length - queries + 1) / kKeysPerPart;
    if (2 * queries * heads > kRowsPerGroup || full_parts == 0 || (window > 0 && length > window)) continue;
    candidates_.push_back({seq, full_parts, 0});
  }
  ranges_.push_back({0, candidates_.size(), 0});
  while (!ranges_.empty()) {
    const Range range = ranges_.back();
    ranges_.pop_back();
    Range open = range;
    while (open.end - open.begin >= 2) {
      const size_t split = sort_by_part(step, open);
      if (split == open.end) {  // all go on together
        ++open.part;
        continue;
      }
      close({range.begin, range.end, range.part}, open.part);
      for (size_t begin = open.begin; begin < open.end;) {
        size_t end = begin + 1;
        while (end < open.end && same_part(step, candidates_[begin], candidates_[end], open.part)) ++end;
        if (end - begin >= 2) ranges_.push_back({begin, end, open.part});
        begin = end;
      }
      break;
    }
  }
}

// Brings candidates with the same blocks of range.part together; returns where the first run of them ends.
size_t PrefixGroups::sort_by_part(const StepQueries& step, Range range) {
  const int64_t count = blocks_per_part(step);
  const auto begin = candidates_.begin() + static_cast<int64_t>(range.begin);
  const auto end = candidates_.begin() + static_cast<int64_t>(range.end);
  for (auto candidate = begin; candidate != end; ++candidate) {
    candidate->hash = static_cast<uint64_t>(candidate->seq);  // one that has no such part is alone
    if (candidate->full_parts <= range.part) continue;
    const int32_t* blocks = blocks_of(step, candidate->seq, range.part);
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < count; ++i) hash = (hash ^ static_cast<uint64_t>(blocks[i])) * 0x100000001b3u;
    candidate->hash = hash;
  }
  std::sort(begin, end, [](const Candidate& a, const Candidate& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.seq < b.seq;
  });
  size_t at = range.begin + 1;
  while (at < range.end && same_part(step, candidates_[range.begin], candidates_[at], range.part)) ++at;
  return at;
}

bool PrefixGroups::same_part(const StepQueries& step, const Candidate& a, const Candidate& b, int64_t part) const {
  if (a.full_parts <= part || b.full_parts <= part || a.hash != b.hash) return false;
  const int32_t* blocks = blocks_of(step, a.seq, part);
  return std::equal(blocks, blocks + blocks_per_part(step), blocks_of(step, b.seq, part));
}

// A node of the range's members over [range.part, part_end), unless that is empty.
void PrefixGroups::close(Range range, int64_t part_end) {
  if (part_end == range.part) return;
  nodes_.push_back({members_.size(), range.end - range.begin, range.part, part_end});
  for (size_t i = range.begin; i < range.end; ++i) {
    members_.push_back(candidates_[i].seq);
    shared_parts_[static_cast<size_t>(candidates_[i].seq)] = part_end;
  }
}

}  // namespace octavo

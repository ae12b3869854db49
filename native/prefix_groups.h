// Which sequences of a step begin with the same blocks: a tree of shared prefixes, in whole parts of 256 keys.
//
// A node is a set of at least two sequences and a range of parts that lie in the same physical blocks for all of them.
// A sequence's nodes follow each other from part 0 on: where a set splits, its larger remainders go on as nodes of their
// own. Only sequences with few queries take part: a long chunk reads its keys once for many rows as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace octavo {

// Queries of the step's sequences: sequence s owns rows [query_start[s], query_start[s + 1]), the last of which is at
// position seq_lens[s] - 1, and its blocks are row row_ids[s] (s itself where row_ids is null) of block_tables.
struct StepQueries {
  int64_t num_seqs;
  const int32_t* query_start;
  const int32_t* seq_lens;
  const int32_t* block_tables;
  const int32_t* row_ids;
  int64_t table_stride;
  int64_t block_size;

  int64_t num_queries(int64_t seq) const { return query_start[seq + 1] - query_start[seq]; }
  const int32_t* table(int64_t seq) const {
    return block_tables + (row_ids == nullptr ? seq : row_ids[seq]) * table_stride;
  }
};

class PrefixGroups {
 public:
  struct Node {
    size_t first_member, num_members;  // in members()
    int64_t part_begin, part_end;
  };

  // `heads`: query heads of one KV head. Reads each block id of a shared part once a sequence, and of the first part of
  // each that shares none. Reuses its memory.
  void find(const StepQueries& step, int64_t heads, int64_t window);
  void clear(int64_t num_seqs);

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int64_t>& members() const { return members_; }  // sequences
  int64_t shared_parts(int64_t seq) const { return shared_parts_[static_cast<size_t>(seq)]; }

 private:
  struct Candidate {
    int64_t seq;
    int64_t full_parts;  // whose every key all of its queries see
    uint64_t hash;       // of the blocks of the part at hand
  };
  struct Range {
    size_t begin, end;  // of candidates_ that share all parts before `part`
    int64_t part;
  };

  size_t sort_by_part(const StepQueries& step, Range range);
  bool same_part(const StepQueries& step, const Candidate& a, const Candidate& b, int64_t part) const;
  void close(Range range, int64_t part_end);

  std::vector<Candidate> candidates_;
  std::vector<Range> ranges_;
  std::vector<Node> nodes_;
  std::vector<int64_t> members_;
  std::vector<int64_t> shared_parts_;
};

}  // namespace octavo

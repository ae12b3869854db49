// Who computes which part of a step's attention: pieces of about equal cost a thread, fixed by the step's shape alone.
//
// Parts that several sequences share are pieces of their own, read once for all their queries; then each sequence's parts
// are merged in order, as they are where threads share a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "prefix_groups.h"

namespace octavo {

struct AttendShape {
  int64_t num_kv_heads;
  int64_t heads;  // query heads of one KV head
  int64_t dim;    // as in KVLayer
  int64_t window;
};

class AttendSchedule {
 public:
  struct Piece {
    int64_t seq;        // whose block table it goes by
    AttendPiece piece;  // without block_table, partials and members
    int64_t partials;   // offset in floats, or -1: the piece is whole
    int64_t first_member = -1;
  };

  // `share`: whether to serve shared prefixes together. Reuses its memory.
  void build(const StepQueries& step, const AttendShape& shape, int num_threads, bool share);

  const Piece* begin(int thread) const { return pieces_.data() + first_piece_[static_cast<size_t>(thread)]; }
  const Piece* end(int thread) const { return pieces_.data() + first_piece_[static_cast<size_t>(thread) + 1]; }
  const std::vector<Piece>& merges() const { return merges_; }  // to be done once all pieces are
  int64_t partial_floats() const { return partial_floats_; }
  int64_t shared_queries() const { return shared_queries_; }  // query tokens that share a prefix with others

  // `from` with the step's block tables and the memory of partial states.
  AttendPiece placed(const Piece& from, const StepQueries& step, float* partials) const;

 private:
  struct Unit {
    int64_t seq, kv_head, row, num_tokens, position, part_begin, part_end, lowest_key;
    int64_t partials;      // -1: where one thread has it whole, it needs none
    int64_t first_member;  // -1: one sequence
    int64_t num_members;
  };

  void list_units(const StepQueries& step, const AttendShape& shape);
  void list_shared_units(const StepQueries& step, const AttendShape& shape);
  void list_shared_merges(const StepQueries& step, const AttendShape& shape);
  void split_units(const AttendShape& shape, int num_threads);

  PrefixGroups groups_;
  std::vector<AttendMember> members_;
  std::vector<int64_t> shared_partials_;  // a sequence: where its states begin
  std::vector<int64_t> merged_parts_;     // a sequence and KV head: the parts whose piece has merged them
  std::vector<Unit> units_;
  std::vector<Piece> pieces_;
  std::vector<size_t> first_piece_;
  std::vector<Piece> merges_;
  int64_t partial_floats_ = 0, shared_queries_ = 0;
};

}  // namespace octavo

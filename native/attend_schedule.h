// Who computes which part of a step's attention: pieces of about equal cost a thread, fixed by the step's shape alone.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace octavo {

// Queries of the step's sequences: sequence s owns rows [query_start[s], query_start[s + 1]), the last of which is at
// position seq_lens[s] - 1.
struct StepQueries {
  int64_t num_seqs;
  const int32_t* query_start;
  const int32_t* seq_lens;
};

class AttendSchedule {
 public:
  struct Piece {
    int64_t seq;
    AttendPiece piece;  // without block_table and partials
    int64_t partials;   // offset in floats, or -1: the piece is whole
  };

  // `heads`: query heads of one KV head. Reuses its memory.
  void build(const StepQueries& step, int64_t num_kv_heads, int64_t heads, int64_t dim, int64_t window,
             int num_threads);

  const Piece* begin(int thread) const { return pieces_.data() + first_piece_[static_cast<size_t>(thread)]; }
  const Piece* end(int thread) const { return pieces_.data() + first_piece_[static_cast<size_t>(thread) + 1]; }
  const std::vector<Piece>& merges() const { return merges_; }  // to be done once all pieces are
  int64_t partial_floats() const { return partial_floats_; }

 private:
  struct Unit {
    int64_t seq, kv_head, row, num_tokens, position, part_begin, part_end, lowest_key;
  };

  void list_units(const StepQueries& step, int64_t num_kv_heads, int64_t heads, int64_t window);

  std::vector<Unit> units_;
  std::vector<Piece> pieces_;
  std::vector<size_t> first_piece_;
  std::vector<Piece> merges_;
  int64_t partial_floats_ = 0;
};

}  // namespace octavo

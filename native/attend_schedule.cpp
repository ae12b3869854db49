#include "attend_schedule.h"

#include <algorithm>

namespace octavo {

namespace {

// Of one part: the keys seen, times rows, plus what a step costs whatever the rows (reading K and V from memory).
int64_t part_cost(int64_t part, int64_t lowest_key, int64_t end_key, int64_t rows) {
  const int64_t begin = std::max(part * kKeysPerPart, lowest_key);
  const int64_t end = std::min((part + 1) * kKeysPerPart, end_key);
  return (end - begin) * (rows + 6) + 32;
}

}  // namespace

void AttendSchedule::list_units(const StepQueries& step, int64_t num_kv_heads, int64_t heads, int64_t window) {
  const int64_t tokens_per_unit = std::max<int64_t>(1, kRowsPerUnit / heads);
  units_.clear();
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    const int64_t first_row = step.query_start[seq], num_rows = step.query_start[seq + 1] - first_row;
    const int64_t first_position = step.seq_lens[seq] - num_rows;
    for (int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      for (int64_t at = 0; at < num_rows; at += tokens_per_unit) {
        const int64_t num_tokens = std::min(tokens_per_unit, num_rows - at), position = first_position + at;
        const int64_t lowest = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
        units_.push_back({seq, kv_head, first_row + at, num_tokens, position, lowest / kKeysPerPart,
                          (position + num_tokens - 1) / kKeysPerPart + 1, lowest});
      }
    }
  }
}

void AttendSchedule::build(const StepQueries& step, int64_t num_kv_heads, int64_t heads, int64_t dim, int64_t window,
                           int num_threads) {
  list_units(step, num_kv_heads, heads, window);
  const auto cost_of = [&](const Unit& unit, int64_t part) {
    return part_cost(part, unit.lowest_key, unit.position + unit.num_tokens, unit.num_tokens * heads);
  };
  int64_t total = 0;
  for (const Unit& unit : units_) {
    for (int64_t part = unit.part_begin; part < unit.part_end; ++part) total += cost_of(unit, part);
  }
  pieces_.clear();
  merges_.clear();
  first_piece_.assign(static_cast<size_t>(num_threads) + 1, 0);
  partial_floats_ = 0;
  int64_t done = 0;
  int thread = 0;
  const auto begin_thread = [&](int next) {
    while (thread < next) first_piece_[static_cast<size_t>(++thread)] = pieces_.size();
  };
  for (const Unit& unit : units_) {
    const size_t first = pieces_.size();
    for (int64_t part = unit.part_begin; part < unit.part_end; ++part) {
      const int64_t cost = cost_of(unit, part);
      begin_thread(static_cast<int>(std::min<int64_t>(num_threads - 1, (done + cost / 2) * num_threads / total)));
      done += cost;
      if (pieces_.size() == first || pieces_.size() == first_piece_[static_cast<size_t>(thread)]) {
        pieces_.push_back({unit.seq,
                           {nullptr, unit.kv_head, unit.row, unit.num_tokens, unit.position, part, part + 1, nullptr},
                           -1});
      } else {
        pieces_.back().piece.part_end = part + 1;
      }
    }
    if (pieces_.size() - first < 2) continue;  // one thread has it whole
    const int64_t floats = attend_state_floats(unit.num_tokens * heads, dim);
    Piece whole = pieces_[first];
    whole.piece.part_end = unit.part_end;
    whole.partials = partial_floats_;
    merges_.push_back(whole);
    for (size_t i = first; i < pieces_.size(); ++i) {
      pieces_[i].partials = partial_floats_ + (pieces_[i].piece.part_begin - unit.part_begin) * floats;
    }
    partial_floats_ += (unit.part_end - unit.part_begin) * floats;
  }
  begin_thread(num_threads);
}

}  // namespace octavo

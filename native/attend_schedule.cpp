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

int64_t num_parts(int64_t length) { return (length - 1) / kKeysPerPart + 1; }

}  // namespace

// One unit a node, KV head and chunk of members; all chunks of a KV head follow each other, so that its keys stay near.
void AttendSchedule::list_shared_units(const StepQueries& step, const AttendShape& shape) {
  members_.clear();
  shared_queries_ = 0;
  shared_partials_.assign(static_cast<size_t>(step.num_seqs), -1);
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    if (groups_.shared_parts(seq) == 0) continue;
    const int64_t rows = step.num_queries(seq) * shape.heads;
    shared_queries_ += step.num_queries(seq);
    shared_partials_[static_cast<size_t>(seq)] = partial_floats_;
    partial_floats_ += attend_state_floats(rows, shape.dim) * num_parts(step.seq_lens[seq]) * shape.num_kv_heads;
  }
  for (const PrefixGroups::Node& node : groups_.nodes()) {
    const size_t first = members_.size();
    for (size_t i = node.first_member; i < node.first_member + node.num_members; ++i) {
      const int64_t seq = groups_.members()[i], tokens = step.num_queries(seq);
      members_.push_back({step.query_start[seq], tokens, shared_partials_[static_cast<size_t>(seq)],
                          attend_state_floats(tokens * shape.heads, shape.dim) * num_parts(step.seq_lens[seq])});
    }
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      for (size_t at = first; at < members_.size();) {
        size_t end = at;
        int64_t tokens = 0;
        while (end < members_.size() && (tokens + members_[end].num_tokens) * shape.heads <= kRowsPerGroup) {
          tokens += members_[end++].num_tokens;
        }
        units_.push_back({groups_.members()[node.first_member], kv_head, 0, tokens, node.part_end * kKeysPerPart - 1,
                          node.part_begin, node.part_end, 0, 0, static_cast<int64_t>(at),
                          static_cast<int64_t>(end - at)});
        at = end;
      }
    }
  }
}

// Every part of a sequence that shares some of them has its state stored: they are merged once all are there.
void AttendSchedule::list_shared_merges(const StepQueries& step, const AttendShape& shape) {
  merged_parts_.assign(static_cast<size_t>(step.num_seqs * shape.num_kv_heads), 0);
  for (const Piece& piece : pieces_) {
    if (piece.first_member < 0 || piece.piece.part_begin > 0) continue;
    for (int64_t i = piece.first_member; i < piece.first_member + piece.piece.num_members; ++i) {
      const int64_t seq = groups_.members()[static_cast<size_t>(i)];
      merged_parts_[static_cast<size_t>(seq * shape.num_kv_heads + piece.piece.kv_head)] = piece.piece.part_end;
    }
  }
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    if (groups_.shared_parts(seq) == 0) continue;
    const int64_t tokens = step.num_queries(seq), parts = num_parts(step.seq_lens[seq]);
    const int64_t floats = attend_state_floats(tokens * shape.heads, shape.dim);
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      Piece merge{};
      merge.seq = seq;
      merge.piece.kv_head = kv_head;
      merge.piece.row = step.query_start[seq];
      merge.piece.num_tokens = tokens;
      merge.piece.position = step.seq_lens[seq] - tokens;
      merge.piece.part_begin = merged_parts_[static_cast<size_t>(seq * shape.num_kv_heads + kv_head)] - 1;
      merge.piece.part_end = parts;
      merge.partials = shared_partials_[static_cast<size_t>(seq)] + (kv_head * parts + merge.piece.part_begin) * floats;
      merges_.push_back(merge);
    }
  }
}

void AttendSchedule::list_units(const StepQueries& step, const AttendShape& shape) {
  const int64_t tokens_per_unit = std::max<int64_t>(1, kRowsPerUnit / shape.heads);
  for (int64_t seq = 0; seq < step.num_seqs; ++seq) {
    const int64_t first_row = step.query_start[seq], num_rows = step.num_queries(seq);
    const int64_t first_position = step.seq_lens[seq] - num_rows, shared = groups_.shared_parts(seq);
    for (int64_t kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      for (int64_t at = 0; at < num_rows; at += tokens_per_unit) {
        const int64_t num_tokens = shared > 0 ? num_rows : std::min(tokens_per_unit, num_rows - at);
        const int64_t position = first_position + at;
        const int64_t lowest = shape.window > 0 ? std::max<int64_t>(0, position + 1 - shape.window) : 0;
        Unit unit{seq, kv_head, first_row + at, num_tokens, position, std::max(shared, lowest / kKeysPerPart),
                  (position + num_tokens - 1) / kKeysPerPart + 1, lowest, -1, -1, 0};
        if (shared > 0) {  // its rows stay together, as in the states of its shared parts
          const int64_t floats = attend_state_floats(num_rows * shape.heads, shape.dim);
          unit.partials = shared_partials_[static_cast<size_t>(seq)] +
                          (kv_head * num_parts(step.seq_lens[seq]) + shared) * floats;
          at = num_rows;
        }
        if (unit.part_begin < unit.part_end) units_.push_back(unit);
      }
    }
  }
}

void AttendSchedule::build(const StepQueries& step, const AttendShape& shape, int num_threads, bool share) {
  units_.clear();
  merges_.clear();
  partial_floats_ = 0;
  if (share) {
    groups_.find(step, shape.heads, shape.window);
  } else {
    groups_.clear(step.num_seqs);
  }
  list_shared_units(step, shape);
  list_units(step, shape);
  split_units(shape, num_threads);
  list_shared_merges(step, shape);
}

void AttendSchedule::split_units(const AttendShape& shape, int num_threads) {
  const auto cost_of = [&](const Unit& unit, int64_t part) {
    return part_cost(part, unit.lowest_key, unit.position + unit.num_tokens, unit.num_tokens * shape.heads);
  };
  int64_t total = 0;
  for (const Unit& unit : units_) {
    for (int64_t part = unit.part_begin; part < unit.part_end; ++part) total += cost_of(unit, part);
  }
  pieces_.clear();
  first_piece_.assign(static_cast<size_t>(num_threads) + 1, 0);
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
                           {nullptr, unit.kv_head, unit.row, unit.num_tokens, unit.position, part, part + 1, nullptr,
                            nullptr, unit.num_members},
                           -1, unit.first_member});
      } else {
        pieces_.back().piece.part_end = part + 1;
      }
    }
    if (unit.first_member >= 0) {
      for (size_t i = first; i < pieces_.size(); ++i) pieces_[i].partials = 0;  // members say where
      continue;
    }
    int64_t partials = unit.partials;
    const int64_t floats = attend_state_floats(unit.num_tokens * shape.heads, shape.dim);
    if (partials < 0) {
      if (pieces_.size() - first < 2) continue;  // one thread has it whole
      partials = partial_floats_;
      partial_floats_ += (unit.part_end - unit.part_begin) * floats;
      Piece whole = pieces_[first];
      whole.piece.part_end = unit.part_end;
      whole.partials = partials;
      merges_.push_back(whole);
    }
    for (size_t i = first; i < pieces_.size(); ++i) {
      pieces_[i].partials = partials + (pieces_[i].piece.part_begin - unit.part_begin) * floats;
    }
  }
  begin_thread(num_threads);
}

AttendPiece AttendSchedule::placed(const Piece& from, const StepQueries& step, float* partials) const {
  AttendPiece piece = from.piece;
  piece.block_table = step.table(from.seq);
  if (from.partials >= 0) piece.partials = partials + from.partials;
  if (from.first_member >= 0) piece.members = members_.data() + from.first_member;
  return piece;
}

}  // namespace octavo

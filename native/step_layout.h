// Lays a step out: from what the plan says of each sequence, and the persistent rows, to the arrays a runner takes.
//
// The same as Rows.batch of executors/rows.py, without an array made in a step: at one stream it is a third of what
// surrounds the model. Nothing here is trusted: a row, a token or a block that is not there is refused.
#pragma once

#include <cstdint>
#include <vector>

#include "drawing.h"
#include "runner.h"

namespace octavo {

// The persistent rows, as executors/rows.py keeps them. Block tables [num_rows, table_stride], one a KV group.
struct PersistentRows {
  int32_t* token_ids;   // [num_rows, stride]
  int32_t* num_tokens;  // [num_rows]
  int64_t num_rows;
  int64_t stride;
  std::vector<const int32_t*> block_tables;
  int64_t table_stride;
  int64_t block_size;
};

// An entry a sequence of the plan.
struct StepPlan {
  std::vector<int32_t> rows;         // its persistent row
  std::vector<int32_t> computed;     // position of the first token to run
  std::vector<int32_t> scheduled;    // how many to run
  std::vector<int32_t> first_write;  // tokens before this position write no KV
  std::vector<int32_t> num_samples;  // how many to draw from its last token
};

class StepLayout {
 public:
  // Throws std::invalid_argument where the plan names a row that is not there, or tokens its row does not know.
  void lay_out(const PersistentRows& rows, const StepPlan& plan);

  const StepArrays& arrays() const { return arrays_; }            // until the next lay_out
  const std::vector<int32_t>& wanted() const { return wanted_; }  // tokens to draw from
  const std::vector<int32_t>& draw_rows() const { return draw_rows_; }
  const std::vector<int32_t>& num_samples() const { return num_samples_; }

 private:
  StepArrays arrays_{};
  std::vector<int32_t> token_ids_, positions_, query_start_, seq_lens_, wanted_, draw_rows_, num_samples_;
  std::vector<std::vector<int64_t>> slots_;
};

// The first token each row drew becomes its next input.
void append_drawn(const PersistentRows& rows, const Drawing& drawing, const StepLayout& layout);

}  // namespace octavo

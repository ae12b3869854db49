#include "step_layout.h"

#include <stdexcept>

namespace octavo {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

void StepLayout::lay_out(const PersistentRows& rows, const StepPlan& plan) {
  const size_t count = plan.rows.size();
  require(plan.computed.size() == count && plan.scheduled.size() == count && plan.first_write.size() == count &&
              plan.num_samples.size() == count,
          "a plan has an entry a sequence");
  slots_.resize(rows.block_tables.size());
  for (std::vector<int32_t>* each :
       {&token_ids_, &positions_, &query_start_, &seq_lens_, &wanted_, &draw_rows_, &num_samples_}) {
    each->clear();
  }
  for (std::vector<int64_t>& slots : slots_) slots.clear();
  query_start_.push_back(0);
  for (size_t s = 0; s < count; ++s) {
    const int64_t row = plan.rows[s], first = plan.computed[s], end = first + plan.scheduled[s];
    require(row >= 0 && row < rows.num_rows, "no such row");
    require(first >= 0 && end > first && end <= rows.num_tokens[row] && rows.num_tokens[row] <= rows.stride,
            "a token is scheduled that is not known");
    require((end - 1) / rows.block_size < rows.table_stride, "a sequence exceeds its block table");
    for (int64_t position = first; position < end; ++position) {
      token_ids_.push_back(rows.token_ids[row * rows.stride + position]);
      positions_.push_back(static_cast<int32_t>(position));
      for (size_t group = 0; group < slots_.size(); ++group) {
        const int64_t block = rows.block_tables[group][row * rows.table_stride + position / rows.block_size];
        const int64_t slot = block * rows.block_size + position % rows.block_size;
        slots_[group].push_back(position < plan.first_write[s] ? -1 : slot);
      }
    }
    query_start_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(static_cast<int32_t>(end));
    if (plan.num_samples[s] > 0) {
      wanted_.push_back(query_start_.back() - 1);
      draw_rows_.push_back(plan.rows[s]);
      num_samples_.push_back(plan.num_samples[s]);
    }
  }
  arrays_.num_tokens = static_cast<int64_t>(token_ids_.size());
  arrays_.num_seqs = static_cast<int64_t>(count);
  arrays_.row_ids = plan.rows.data();
  arrays_.token_ids = token_ids_.data();
  arrays_.positions = positions_.data();
  arrays_.query_start = query_start_.data();
  arrays_.seq_lens = seq_lens_.data();
  arrays_.slots.clear();
  for (const std::vector<int64_t>& slots : slots_) arrays_.slots.push_back(slots.data());
  arrays_.block_tables = rows.block_tables;
  arrays_.table_stride = rows.table_stride;
  arrays_.table_rows = rows.num_rows;
}

void append_drawn(const PersistentRows& rows, const Drawing& drawing, const StepLayout& layout) {
  size_t place = 0;
  for (size_t i = 0; i < layout.draw_rows().size(); ++i) {
    const int64_t row = layout.draw_rows()[i];
    if (rows.num_tokens[row] < rows.stride) {
      rows.token_ids[row * rows.stride + rows.num_tokens[row]] = drawing.token_ids()[place];
      ++rows.num_tokens[row];
    }
    place += static_cast<size_t>(layout.num_samples()[i]);
  }
}

}  // namespace octavo

#include "runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "memory.h"

namespace octavo {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

int64_t heads_per_kv_head(const Program& program, int64_t num_heads) { return num_heads / program.num_kv_heads(); }

}  // namespace

Runner::Runner(const Program& program, Arena& arena, ThreadPool& pool, int64_t max_model_len)
    : program_(program), kernels_(program.kernels()), arena_(arena), pool_(pool), num_token_ids_(0), shared_rows_(0),
      max_model_len_(max_model_len) {
  const KVLayer kv = arena.layer(0);
  const int64_t dim = kv.dim;
  require(kv.num_kv_heads == program.num_kv_heads() && kv.head_dim == program.head_dim(),
          "the arena was made for other heads");
  for (const LayerPlace& place : program.layers()) {
    require(place.group >= 0 && place.index >= 0 && place.index < arena.num_layers(), "the arena lacks a layer");
    num_groups_ = std::max(num_groups_, static_cast<size_t>(place.group) + 1);
  }
  int64_t max_rows = 1;
  for (const AttendKind& kind : program.attend_kinds()) {
    max_rows = std::max({max_rows, kRowsPerGroup, heads_per_kv_head(program, kind.num_heads)});
  }
  for (const Stage& stage : program.stages()) {
    for (const Op& op : stage.ops) {
      if (op.kind == OpKind::kEmbed) num_token_ids_ = op.weight->weight().rows;
    }
  }
  scratch_bytes_ = kernels_.attend_scratch_bytes(max_rows, dim);
  schedules_.resize(program.attend_kinds().size());
  for (const RopeTable& rope : program.ropes()) {
    const size_t entries = rope.inv_freq.size() * static_cast<size_t>(program.max_tokens());
    cos_.emplace_back(entries);
    sin_.emplace_back(entries);
  }
  shared_rows_ = std::max(std::min(program.max_tokens(), kMaxSharedRows), kMaxHeadRows);
  rounded_bytes_ = program.rounded_row_bytes() * static_cast<size_t>(shared_rows_);
  arenas_bytes_ = program.arena_bytes() * static_cast<size_t>(pool.size());
  workspace_ = static_cast<uint8_t*>(reserve_memory(program.workspace_bytes()));
  rounded_ = static_cast<uint8_t*>(reserve_memory(rounded_bytes_));
  arenas_ = static_cast<uint8_t*>(reserve_memory(arenas_bytes_));
  scratch_ = static_cast<uint8_t*>(reserve_memory(scratch_bytes_ * static_cast<size_t>(pool.size())));
}

Runner::~Runner() {
  unmap_memory(workspace_, program_.workspace_bytes());
  unmap_memory(rounded_, rounded_bytes_);
  unmap_memory(arenas_, arenas_bytes_);
  unmap_memory(scratch_, scratch_bytes_ * static_cast<size_t>(pool_.size()));
  unmap_memory(partials_, partial_bytes_);
}

void Runner::trim() noexcept {
  discard_memory(workspace_, program_.workspace_bytes());
  discard_memory(rounded_, rounded_bytes_);
  discard_memory(arenas_, arenas_bytes_);
  discard_memory(scratch_, scratch_bytes_ * static_cast<size_t>(pool_.size()));
  discard_memory(partials_, partial_bytes_);
}

void Runner::check(const StepArrays& step, const std::vector<int32_t>& wanted) const {
  require(step.slots.size() == num_groups_ && step.block_tables.size() == num_groups_,
          "slots and block tables: one a KV group");
  require(step.num_tokens > 0 && step.num_tokens <= program_.max_tokens(), "a step's tokens exceed the limit");
  require(step.query_start[0] == 0 && step.query_start[step.num_seqs] == step.num_tokens,
          "query ranges do not cover the step");
  for (int64_t t = 0; t < step.num_tokens; ++t) {
    require(step.token_ids[t] >= 0 && step.token_ids[t] < num_token_ids_, "a token id lies outside the vocabulary");
    require(step.positions[t] >= 0, "a position is negative");
  }
  const int64_t num_slots = arena_.num_blocks() * arena_.block_size();
  for (const int64_t* slots : step.slots) {
    for (int64_t t = 0; t < step.num_tokens; ++t) require(slots[t] >= -1 && slots[t] < num_slots, "no such slot");
  }
  for (const int32_t token : wanted) require(token >= 0 && token < step.num_tokens, "a wanted row is not in the step");
  for (int64_t s = 0; s < step.num_seqs; ++s) {
    const int64_t queries = step.query_start[s + 1] - step.query_start[s];
    require(queries >= 1 && step.seq_lens[s] >= queries, "a sequence is shorter than its queries");
    require(step.row_ids[s] >= 0 && step.row_ids[s] < step.table_rows, "no such row");
    require(step.seq_lens[s] <= max_model_len_, "a sequence is longer than max_model_len");
    require((step.seq_lens[s] - 1) / arena_.block_size() < step.table_stride, "a sequence exceeds its block table");
  }
  for (const AttendKind& kind : program_.attend_kinds()) {
    const int32_t* tables = step.block_tables[static_cast<size_t>(kind.group)];
    for (int64_t s = 0; s < step.num_seqs; ++s) {
      const int64_t first_position = step.seq_lens[s] - (step.query_start[s + 1] - step.query_start[s]);
      const int64_t lowest = kind.window > 0 ? std::max<int64_t>(0, first_position + 1 - kind.window) : 0;
      const int64_t last = (step.seq_lens[s] - 1) / arena_.block_size();
      const int32_t* table = tables + step.row_ids[s] * step.table_stride;
      for (int64_t b = lowest / arena_.block_size(); b <= last; ++b) {
        require(table[b] >= 0 && table[b] < arena_.num_blocks(), "a block table names a block that does not exist");
      }
    }
  }
}

void Runner::check(const StepArrays& step, const HiddenSums& hidden) const {
  require(hidden.tokens.size() == hidden.entries.size(), "hidden: a sum a token");
  require(hidden.tokens.empty() || program_.hidden() >= 0, "the program has no hidden state before its head");
  for (const int32_t token : hidden.tokens) {
    require(token >= 0 && token < step.num_tokens, "a token to be summed is not in the step");
  }
  for (const int32_t entry : hidden.entries) require(entry >= 0 && entry < hidden.num_sums, "no such sum");
}

void Runner::run(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer,
                 const HiddenSums& hidden) {
  check(step, wanted);
  check(step, hidden);
  schedule_attention(step);
  pool_.run([&](int thread) { run_stages(step, wanted, consumer, hidden, thread); });
}

StepQueries Runner::queries_of(const StepArrays& step, int group) const {
  return {step.num_seqs, step.query_start, step.seq_lens, step.block_tables[static_cast<size_t>(group)], step.row_ids,
          step.table_stride, arena_.block_size()};
}

void Runner::schedule_attention(const StepArrays& step) {
  int64_t partial_floats = 0, shared_queries = 0;
  for (size_t i = 0; i < schedules_.size(); ++i) {
    const AttendKind& kind = program_.attend_kinds()[i];
    schedules_[i].build(queries_of(step, kind.group),
                        {program_.num_kv_heads(), heads_per_kv_head(program_, kind.num_heads), arena_.layer(0).dim,
                         kind.window},
                        pool_.size(), share_prefixes_);
    partial_floats = std::max(partial_floats, schedules_[i].partial_floats());
    shared_queries = std::max(shared_queries, schedules_[i].shared_queries());
  }
  shared_queries_ += shared_queries;
  const size_t bytes = static_cast<size_t>(partial_floats) * sizeof(float);
  if (bytes <= partial_bytes_) return;
  unmap_memory(partials_, partial_bytes_);
  partials_ = nullptr;
  partial_bytes_ = 0;
  partials_ = static_cast<float*>(reserve_memory(bytes));
  partial_bytes_ = bytes;
}

}  // namespace octavo

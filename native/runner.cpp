#include "runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "memory.h"

namespace octavo {

namespace {

constexpr int64_t kMinRowsPerShare = 32;              // rows are split between threads only in pieces as large as this
constexpr size_t kRoundedBytesPerCall = 384 * 1024;   // rounded rows that stay in a core's second cache

// Threads as a grid: `panels` ways to split the panels, `rows` ways to split the rows.
struct Grid {
  int panels;
  int rows;
};

Grid choose_grid(int64_t num_panels, int64_t num_rows, int num_threads) {
  Grid best{num_threads, 1};
  int64_t best_cost = 0;
  for (int rows = 1; rows <= num_threads; ++rows) {
    if (num_threads % rows != 0 || (rows > 1 && num_rows < rows * kMinRowsPerShare)) continue;
    const int64_t panels = num_threads / rows;
    const int64_t cost = ((num_panels + panels - 1) / panels) * ((num_rows + rows - 1) / rows);
    if (rows > 1 && cost * 20 >= best_cost * 19) continue;  // reading each weight once is worth a little imbalance
    best = {num_threads / rows, rows};
    best_cost = cost;
  }
  return best;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

int64_t heads_per_kv_head(const Program& program, int64_t num_heads) { return num_heads / program.num_kv_heads(); }

}  // namespace

Runner::Runner(const Program& program, Arena& arena, ThreadPool& pool, int64_t max_model_len)
    : program_(program), kernels_(program.kernels()), arena_(arena), pool_(pool), num_token_ids_(0),
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
  workspace_ = static_cast<uint8_t*>(reserve_memory(program.workspace_bytes()));
  rounded_ = static_cast<uint8_t*>(reserve_memory(program.rounded_bytes()));
  scratch_ = static_cast<uint8_t*>(reserve_memory(scratch_bytes_ * static_cast<size_t>(pool.size())));
}

Runner::~Runner() {
  unmap_memory(workspace_, program_.workspace_bytes());
  unmap_memory(rounded_, program_.rounded_bytes());
  unmap_memory(scratch_, scratch_bytes_ * static_cast<size_t>(pool_.size()));
  unmap_memory(partials_, partial_bytes_);
}

void Runner::trim() noexcept {
  discard_memory(workspace_, program_.workspace_bytes());
  discard_memory(rounded_, program_.rounded_bytes());
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

void Runner::run(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer) {
  check(step, wanted);
  schedule_attention(step);
  pool_.run([&](int thread) { run_stages(step, wanted, consumer, thread); });
}

void Runner::run_stages(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer,
                        int thread) {
  const std::vector<Stage>& stages = program_.stages();
  size_t first_head = 0;
  const Share body_rows = share_of(step.num_tokens, thread, pool_.size());
  make_rope_tables(step, body_rows);
  for (; first_head < stages.size() && !stages[first_head].head; ++first_head) {
    const Stage& stage = stages[first_head];
    switch (stage.kind) {
      case Stage::Kind::kRows: run_rows(stage, step, nullptr, body_rows); break;
      case Stage::Kind::kLinear: run_linear(stage, step.num_tokens, thread); break;
      case Stage::Kind::kAttend: run_attend(stage.ops[0], step, thread); break;
    }
    pool_.barrier();
  }
  const int64_t num_wanted = static_cast<int64_t>(wanted.size());
  for (int64_t begin = 0; begin < num_wanted; begin += kMaxHeadRows) {
    const int64_t count = std::min(kMaxHeadRows, num_wanted - begin);
    const Share head_rows = share_of(count, thread, pool_.size());
    for (size_t s = first_head; s < stages.size(); ++s) {
      if (stages[s].kind == Stage::Kind::kRows) {
        run_rows(stages[s], step, wanted.data() + begin, head_rows);
      } else {
        run_linear(stages[s], count, thread);
      }
      pool_.barrier();
    }
    for (int64_t r = thread; r < count; r += pool_.size()) {
      consumer.take(begin + r, row(program_.output(), r), thread);
    }
    pool_.barrier();
  }
}

void Runner::make_rope_tables(const StepArrays& step, Share rows) {
  for (size_t i = 0; i < program_.ropes().size(); ++i) {
    const RopeTable& rope = program_.ropes()[i];
    const size_t pairs = rope.inv_freq.size();
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float* cos = cos_[i].data() + static_cast<size_t>(r) * pairs;
      float* sin = sin_[i].data() + static_cast<size_t>(r) * pairs;
      for (size_t p = 0; p < pairs; ++p) {
        const double angle = static_cast<double>(step.positions[r]) * rope.inv_freq[p];
        cos[p] = static_cast<float>(std::cos(angle) * rope.factor);
        sin[p] = static_cast<float>(std::sin(angle) * rope.factor);
      }
    }
  }
}

void Runner::run_rows(const Stage& stage, const StepArrays& step, const int32_t* chosen, Share rows) {
  if (rows.begin == rows.end) return;
  for (const Op& op : stage.ops) run_row_op(op, step, chosen, rows);
  for (const Rounding& rounding : stage.roundings) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      kernels_.round_activation(rounding.form, row(rounding.buffer, r), rounding.cols,
                                rounded_ + rounding.offset + static_cast<size_t>(r) * rounding.row_bytes);
    }
  }
}

void Runner::run_row_op(const Op& op, const StepArrays& step, const int32_t* chosen, Share rows) {
  const int64_t first = rows.begin, count = rows.end - rows.begin;
  float* out = op.out >= 0 ? row(op.out, first) : nullptr;
  const float* x = op.x >= 0 && op.kind != OpKind::kSelectRows ? row(op.x, first) : nullptr;
  const float* y = op.y >= 0 ? row(op.y, first) : nullptr;
  const int64_t out_stride = op.out >= 0 ? program_.stride(op.out) : 0, width = op.out >= 0 ? program_.width(op.out) : 0;
  const int64_t x_stride = op.x >= 0 ? program_.stride(op.x) : 0, y_stride = op.y >= 0 ? program_.stride(op.y) : 0;
  switch (op.kind) {
    case OpKind::kEmbed:
      for (int64_t r = 0; r < count; ++r) {
        kernels_.unpack_row(op.weight->weight(), step.token_ids[first + r], out + r * out_stride);
      }
      break;
    case OpKind::kAddPosition:
      for (int64_t r = 0; r < count; ++r) {
        const int64_t last = op.weight->weight().rows - 1;
        const int64_t at = std::min<int64_t>(step.positions[first + r] + op.at, last);
        kernels_.unpack_row(op.weight->weight(), at, out + r * out_stride);
        kernels_.add(x + r * x_stride, x_stride, out + r * out_stride, out_stride, width, 1, out + r * out_stride,
                     out_stride);
      }
      break;
    case OpKind::kRmsNorm:
      kernels_.rms_norm(x, x_stride, op.vector, op.at, width, op.value, count, out, out_stride);
      break;
    case OpKind::kLayerNorm:
      kernels_.layer_norm(x, x_stride, op.vector, op.bias, width, op.value, count, out, out_stride);
      break;
    case OpKind::kCopy:
      for (int64_t r = 0; r < count; ++r) {
        std::memcpy(out + r * out_stride + op.at, x + r * x_stride,
                    static_cast<size_t>(program_.width(op.x)) * sizeof(float));
      }
      break;
    case OpKind::kSelectRows:
      for (int64_t r = 0; r < count; ++r) {
        std::memcpy(out + r * out_stride, row(op.x, chosen[first + r]), static_cast<size_t>(width) * sizeof(float));
      }
      break;
    case OpKind::kRope: {
      const size_t table = static_cast<size_t>(op.index);
      const int64_t pairs = static_cast<int64_t>(program_.ropes()[table].inv_freq.size());
      kernels_.rope(x, x_stride, cos_[table].data() + first * pairs, sin_[table].data() + first * pairs,
                    width / op.head_dim, op.head_dim, 2 * pairs, count, out, out_stride);
      break;
    }
    case OpKind::kWriteKV: {
      const LayerPlace& place = program_.layer(op.index);
      kernels_.write_kv(arena_.layer(place.index), x, x_stride, y, y_stride,
                        step.slots[static_cast<size_t>(place.group)] + first, count);
      break;
    }
    case OpKind::kActMul:
      kernels_.act_mul(op.activation, x, x_stride, y, y_stride, width, count, out, out_stride);
      break;
    case OpKind::kActivation:
      kernels_.activation(op.activation, x, x_stride, width, count, out, out_stride);
      break;
    case OpKind::kAdd: kernels_.add(x, x_stride, y, y_stride, width, count, out, out_stride); break;
    case OpKind::kMul: kernels_.mul(x, x_stride, y, y_stride, width, count, out, out_stride); break;
    case OpKind::kScale: kernels_.scale(x, x_stride, op.value, width, count, out, out_stride); break;
    case OpKind::kSoftcap: kernels_.softcap(x, x_stride, op.value, width, count, out, out_stride); break;
    case OpKind::kLinear:
    case OpKind::kAttend: break;  // have stages of their own
  }
}

void Runner::run_linear(const Stage& stage, int64_t num_rows, int thread) {
  int64_t num_panels = 0;
  for (const Op& op : stage.ops) num_panels += op.weight->weight().num_panels;
  const Grid grid = choose_grid(num_panels, num_rows, pool_.size());
  const Share panels = share_of(num_panels, thread % grid.panels, grid.panels);
  const Share rows = share_of(num_rows, thread / grid.panels, grid.rows);
  size_t row_bytes = 1;
  for (const Rounding& rounding : stage.roundings) row_bytes = std::max(row_bytes, rounding.row_bytes);
  const int64_t step = std::max<int64_t>(kMinRowsPerShare, static_cast<int64_t>(kRoundedBytesPerCall / row_bytes));
  for (int64_t begin = rows.begin; begin < rows.end; begin += step) {
    const int64_t count = std::min(step, rows.end - begin);
    int64_t first_panel = 0;
    for (size_t i = 0; i < stage.ops.size(); ++i) {
      const Op& op = stage.ops[i];
      const Weight& weight = op.weight->weight();
      const int64_t from = std::max<int64_t>(0, panels.begin - first_panel);
      const int64_t to = std::min(weight.num_panels, panels.end - first_panel);
      first_panel += weight.num_panels;
      if (from >= to) continue;
      const Rounding& rounding = stage.roundings[static_cast<size_t>(stage.rounding_of[i])];
      const uint8_t* activations = rounded_ + rounding.offset + static_cast<size_t>(begin) * rounding.row_bytes;
      kernels_.linear(weight, activations, count, from, to, row(op.out, begin), program_.stride(op.out), op.bias);
    }
  }
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

void Runner::run_attend(const Op& op, const StepArrays& step, int thread) {
  const LayerPlace& place = program_.layer(op.index);
  const AttendArgs args{arena_.layer(place.index), row(op.x, 0), program_.stride(op.x), row(op.out, 0),
                        program_.stride(op.out), op.at, op.value, op.softcap, place.window, op.vector};
  const AttendSchedule& schedule = schedules_[static_cast<size_t>(op.schedule)];
  const StepQueries queries = queries_of(step, place.group);
  void* scratch = scratch_ + static_cast<size_t>(thread) * scratch_bytes_;
  const AttendSchedule::Piece* const end = schedule.end(thread);
  AttendPiece piece, next;
  if (schedule.begin(thread) != end) next = schedule.placed(*schedule.begin(thread), queries, partials_);
  for (const AttendSchedule::Piece* at = schedule.begin(thread); at != end; ++at) {
    piece = next;
    if (at + 1 != end) next = schedule.placed(at[1], queries, partials_);
    kernels_.attend(args, piece, at + 1 != end ? &next : nullptr, scratch);
  }
  if (schedule.merges().empty()) return;
  pool_.barrier();
  const std::vector<AttendSchedule::Piece>& merges = schedule.merges();
  for (size_t i = static_cast<size_t>(thread); i < merges.size(); i += static_cast<size_t>(pool_.size())) {
    kernels_.attend_merge(args, schedule.placed(merges[i], queries, partials_), scratch);
  }
}

}  // namespace octavo

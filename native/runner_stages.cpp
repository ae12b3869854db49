// Running the stages of a step on every thread (runner.h).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runner.h"

namespace octavo {

namespace {

constexpr int64_t kMinRowsPerShare = 32;  // rows are split between threads only in pieces as large as this
constexpr int64_t kMaxOwnRows = 4;        // rows that each thread rather prepares for itself than waits for
constexpr int64_t kRowsPerPass = 8;       // that row operations take through one after another, in the first cache

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

int64_t panels_of(const Stage& stage) {
  int64_t num_panels = 0;
  for (const Op& op : stage.ops) num_panels += op.weight->weight().num_panels;
  return num_panels;
}

// Asks memory for the beginning of what a thread multiplies in the next product, while it waits for the others.
void fetch_ahead(const Stage& stage, Share panels) {
  constexpr size_t kBytes = 4096;
  for (const Op& op : stage.ops) {
    const Weight& weight = op.weight->weight();
    if (panels.begin >= weight.num_panels) {
      panels.begin -= weight.num_panels;
      continue;
    }
    const size_t at = static_cast<size_t>(panels.begin) * weight.panel_bytes;
    for (size_t i = 0; i < kBytes; i += 64) {
      __builtin_prefetch(weight.data + at + i, 0, 3);
      if (op.up != nullptr) __builtin_prefetch(op.up->weight().data + at + i, 0, 3);
    }
    return;
  }
}

bool in_blocks(int64_t num_rows, int num_threads) {
  return num_rows >= std::min<int64_t>(kMinRowsPerShare * num_threads, kMaxSharedRows);
}

}  // namespace

void Runner::run_stages(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer,
                        const HiddenSums& hidden, int thread) {
  const Stage* stage = program_.stages().data();
  const Stage* const last = stage + program_.stages().size();
  const bool blocks = in_blocks(step.num_tokens, pool_.size());
  make_rope_tables(step, share_of(step.num_tokens, thread, pool_.size()));
  while (stage != last && !stage->head) {
    if (stage->kind == Stage::Kind::kAttend) {
      run_attend(stage->ops[0], step, thread);
      ++stage;
      meet(stage, blocks ? stage : last, step.num_tokens, thread);
      continue;
    }
    const Stage* const begin = stage;
    while (stage != last && !stage->head && stage->kind != Stage::Kind::kAttend) ++stage;
    if (blocks) {
      run_in_blocks(begin, stage, step, thread);
    } else {
      run_together(begin, stage, step, step.num_tokens, nullptr, thread);
    }
  }
  const int64_t num_wanted = static_cast<int64_t>(wanted.size());
  for (int64_t begin = 0; begin < num_wanted; begin += kMaxHeadRows) {
    const int64_t count = std::min(kMaxHeadRows, num_wanted - begin);
    run_together(stage, last, step, count, wanted.data() + begin, thread);
    for (int64_t r = thread; r < count; r += pool_.size()) {
      consumer.take(begin + r, row(program_.output(), r, {}), thread);
    }
    pool_.barrier(thread);
  }
  if (!hidden.tokens.empty()) sum_hidden(stage, step, hidden, thread);
}

// The head as far as the hidden state, for the tokens that are summed; each thread adds up columns of its own.
void Runner::sum_hidden(const Stage* head, const StepArrays& step, const HiddenSums& hidden, int thread) {
  const Stage* const end = program_.stages().data() + program_.hidden_end();
  const int64_t width = hidden_size(), num_tokens = static_cast<int64_t>(hidden.tokens.size());
  const Share columns = share_of(width, thread, pool_.size());
  for (int64_t begin = 0; begin < num_tokens; begin += kMaxHeadRows) {
    const int64_t count = std::min(kMaxHeadRows, num_tokens - begin);
    run_together(head, end, step, count, hidden.tokens.data() + begin, thread, false);
    for (int64_t r = 0; r < count; ++r) {
      const float* x = row(program_.hidden(), r, {});
      double* sum = hidden.sums + hidden.entries[static_cast<size_t>(begin + r)] * width;
      for (int64_t c = columns.begin; c < columns.end; ++c) sum[c] += static_cast<double>(x[c]);
    }
    pool_.barrier(thread);
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

// A thread's share of the step's rows, in blocks of nearly equal height.
void Runner::run_in_blocks(const Stage* begin, const Stage* end, const StepArrays& step, int thread) {
  const Share share = share_of(step.num_tokens, thread, pool_.size());
  const int64_t num_rows = share.end - share.begin;
  const int num_blocks = static_cast<int>((num_rows + kMaxBlockRows - 1) / kMaxBlockRows);
  for (int b = 0; b < num_blocks; ++b) {
    const Share rows = share_of(num_rows, b, num_blocks);
    const Block block{{share.begin + rows.begin, share.begin + rows.end}, Block::Alone::kAll, arena(thread), nullptr};
    for (const Stage* stage = begin; stage != end; ++stage) {
      if (stage->kind == Stage::Kind::kRows) {
        run_rows(*stage, step, block);
      } else {
        run_linear(*stage, block, {{0, panels_of(*stage)}, block.rows});
      }
    }
  }
  pool_.barrier(thread);
}

void Runner::run_together(const Stage* begin, const Stage* end, const StepArrays& step, int64_t num_rows,
                          const int32_t* chosen, int thread, bool may_own) {
  Block::Alone alone = Block::Alone::kNothing;
  for (const Stage* stage = begin; stage != end; ++stage) {
    if (stage->kind == Stage::Kind::kRows) {
      const bool own = may_own && stage->own && num_rows <= kMaxOwnRows;
      alone = own ? Block::Alone::kOwn : Block::Alone::kNothing;
      const Share rows = own ? Share{0, num_rows} : share_of(num_rows, thread, pool_.size());
      run_rows(*stage, step, {rows, alone, arena(thread), chosen});
      if (own) continue;
    } else {
      run_linear(*stage, {{0, num_rows}, alone, arena(thread), chosen}, part_of(*stage, num_rows, thread));
    }
    meet(stage + 1, end, num_rows, thread);
  }
}

// The barrier before `next`.
void Runner::meet(const Stage* next, const Stage* end, int64_t num_rows, int thread) {
  if (next != end && next->kind == Stage::Kind::kRows) ++next;
  if (next != end && next->kind == Stage::Kind::kLinear) fetch_ahead(*next, part_of(*next, num_rows, thread).panels);
  pool_.barrier(thread);
}

Runner::Part Runner::part_of(const Stage& stage, int64_t num_rows, int thread) const {
  const int64_t num_panels = panels_of(stage);
  const Grid grid = choose_grid(num_panels, num_rows, pool_.size());
  return {share_of(num_panels, thread % grid.panels, grid.panels), share_of(num_rows, thread / grid.panels, grid.rows)};
}

// All operations for a few rows, then the next ones: what one operation wrote the next finds in the first cache.
void Runner::run_rows(const Stage& stage, const StepArrays& step, const Block& block) {
  for (int64_t first = block.rows.begin; first < block.rows.end; first += kRowsPerPass) {
    const Share rows{first, std::min(first + kRowsPerPass, block.rows.end)};
    for (const Op& op : stage.ops) run_row_op(op, step, block, rows);
    for (const Rounding& rounding : stage.roundings) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        kernels_.round_activation(rounding.form, row(rounding.buffer, r, block), rounding.cols,
                                  rounded(rounding, r, block));
      }
    }
  }
}

// Rounded rows of an arena lie behind its buffers; row 0 of both is the block's first.
uint8_t* Runner::rounded(const Rounding& rounding, int64_t index, const Block& block) const {
  const bool alone = block.alone != Block::Alone::kNothing;
  uint8_t* base = alone ? block.arena + program_.arena_rounded_at() : rounded_;
  const size_t rows = static_cast<size_t>(alone ? kMaxBlockRows : shared_rows_);
  const size_t at = static_cast<size_t>(alone ? index - block.rows.begin : index);
  return base + rounding.column * rows + at * rounding.row_bytes;
}

void Runner::run_row_op(const Op& op, const StepArrays& step, const Block& block, Share rows) {
  const int64_t first = rows.begin, count = rows.end - rows.begin;
  float* out = op.out >= 0 ? row(op.out, first, block) : nullptr;
  const float* x = op.x >= 0 && op.kind != OpKind::kSelectRows ? row(op.x, first, block) : nullptr;
  const float* y = op.y >= 0 ? row(op.y, first, block) : nullptr;
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
        std::memcpy(out + r * out_stride, row(op.x, block.chosen[first + r], block), static_cast<size_t>(width) * sizeof(float));
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
    case OpKind::kGatedLinear:
    case OpKind::kAttend: break;  // have stages of their own
  }
}

void Runner::run_linear(const Stage& stage, const Block& block, Part part) {
  const int64_t first = part.rows.begin, count = part.rows.end - part.rows.begin;
  int64_t first_panel = 0;
  for (size_t i = 0; i < stage.ops.size(); ++i) {
    const Op& op = stage.ops[i];
    const Weight& weight = op.weight->weight();
    const int64_t from = std::max<int64_t>(0, part.panels.begin - first_panel);
    const int64_t to = std::min(weight.num_panels, part.panels.end - first_panel);
    first_panel += weight.num_panels;
    if (from >= to) continue;
    const uint8_t* activations = rounded(stage.roundings[static_cast<size_t>(stage.rounding_of[i])], first, block);
    LinearOut out{row(op.out, first, block), program_.stride(op.out), op.bias, op.up_bias};
    if (op.kind == OpKind::kGatedLinear) {
      kernels_.linear_gated(op.activation, weight, op.up->weight(), activations, count, from, to, out);
      continue;
    }
    if (op.y >= 0) out.add = row(op.y, first, block), out.add_stride = program_.stride(op.y);
    kernels_.linear(weight, activations, count, from, to, out);
  }
}

void Runner::run_attend(const Op& op, const StepArrays& step, int thread) {
  const LayerPlace& place = program_.layer(op.index);
  const Block all{{0, step.num_tokens}};
  const AttendArgs args{arena_.layer(place.index), row(op.x, 0, all), program_.stride(op.x), row(op.out, 0, all),
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
  pool_.barrier(thread);
  const std::vector<AttendSchedule::Piece>& merges = schedule.merges();
  for (size_t i = static_cast<size_t>(thread); i < merges.size(); i += static_cast<size_t>(pool_.size())) {
    kernels_.attend_merge(args, schedule.placed(merges[i], queries, partials_), scratch);
  }
}

}  // namespace octavo

#include "program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace octavo {

namespace {

constexpr int64_t kFloatsPerLine = 16;

int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

std::vector<int> buffers_read(const Op& op) {
  std::vector<int> read;
  if (op.x >= 0) read.push_back(op.x);
  if (op.y >= 0) read.push_back(op.y);
  if (op.kind == OpKind::kCopy) read.push_back(op.out);  // other columns of `out` may be written already
  return read;
}

Program::Program(const Kernels& kernels, int64_t num_kv_heads, int64_t head_dim, std::vector<LayerPlace> layers)
    : kernels_(&kernels), num_kv_heads_(num_kv_heads), head_dim_(head_dim), layers_(std::move(layers)) {
  require(num_kv_heads > 0 && head_dim > 0, "a program needs at least one KV head and one dimension");
}

int Program::add_buffer(int64_t width) {
  require(width > 0, "a buffer needs at least one column");
  storages_.push_back({{0, 0, rounded_up(width, kFloatsPerLine), Scope::kStep, false}});
  buffers_.push_back({width, 0, static_cast<int>(storages_.size()) - 1});
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_view(int buffer, int64_t begin, int64_t end) {
  check_buffer(buffer, -1);
  const Buffer of = buffers_[static_cast<size_t>(buffer)];
  require(begin >= 0 && begin < end && end <= of.width, "a view lies inside its buffer");
  buffers_.push_back({end - begin, of.column + begin, of.storage});
  return static_cast<int>(buffers_.size()) - 1;
}

const float* Program::add_vector(const float* values, int64_t count) {
  vectors_.push_back(std::make_unique<float[]>(static_cast<size_t>(count)));
  std::memcpy(vectors_.back().get(), values, static_cast<size_t>(count) * sizeof(float));
  return vectors_.back().get();
}

int Program::add_rope(std::vector<double> inv_freq, double factor) {
  for (size_t i = 0; i < ropes_.size(); ++i) {
    if (ropes_[i].inv_freq == inv_freq && ropes_[i].factor == factor) return static_cast<int>(i);
  }
  ropes_.push_back({std::move(inv_freq), factor});
  return static_cast<int>(ropes_.size()) - 1;
}

void Program::check_buffer(int buffer, int64_t width) const {
  require(buffer >= 0 && buffer < static_cast<int>(buffers_.size()), "no such buffer");
  require(width < 0 || this->width(buffer) == width, "a buffer has another width than its operation needs");
}

void Program::check(const Op& op) const {
  const bool writes = op.kind != OpKind::kWriteKV;
  if (writes) check_buffer(op.out, -1);
  if (op.x >= 0) check_buffer(op.x, -1);
  if (op.y >= 0) check_buffer(op.y, -1);
  const int64_t out = writes ? width(op.out) : 0;
  switch (op.kind) {
    case OpKind::kEmbed:
    case OpKind::kAddPosition:
      require(op.weight->weight().cols == out, "an embedding's columns are its buffer's width");
      break;
    case OpKind::kLinear:
      require(op.weight->weight().rows == out && op.weight->weight().cols == width(op.x),
              "a linear's weight is [width of out, width of x]");
      break;
    case OpKind::kRmsNorm:
      require(width(op.x) == out && op.at > 0 && out % op.at == 0, "a norm's groups fill its buffer");
      break;
    case OpKind::kCopy:
      require(op.at >= 0 && op.at + width(op.x) <= out, "a copy lies inside its target");
      break;
    case OpKind::kRope:
      require(width(op.x) == out && op.head_dim > 0 && out % op.head_dim == 0, "rotary heads fill their buffer");
      require(2 * static_cast<int64_t>(ropes_[static_cast<size_t>(op.index)].inv_freq.size()) <= op.head_dim,
              "rotary dimensions lie inside the head");
      break;
    case OpKind::kWriteKV:
      require(op.index >= 0 && op.index < static_cast<int>(layers_.size()), "no such layer");
      require(width(op.x) == num_kv_heads_ * head_dim_ && width(op.y) == num_kv_heads_ * head_dim_,
              "keys and values are num_kv_heads * head_dim wide");
      break;
    case OpKind::kAttend:
      require(op.index >= 0 && op.index < static_cast<int>(layers_.size()), "no such layer");
      require(op.at > 0 && op.at % num_kv_heads_ == 0, "query heads are a multiple of the KV heads");
      require(width(op.x) == op.at * head_dim_ && out == op.at * head_dim_, "queries are num_heads * head_dim wide");
      break;
    case OpKind::kActMul:
    case OpKind::kAdd:
    case OpKind::kMul:
      require(width(op.x) == out && width(op.y) == out, "both operands are as wide as the result");
      break;
    default:
      require(width(op.x) == out, "the operand is as wide as the result");
  }
}

void Program::add(Op op) {
  check(op);
  if (op.kind == OpKind::kAttend) {
    const LayerPlace& place = layer(op.index);
    const AttendKind kind{place.window, op.at, place.group};
    const auto same = [&](const AttendKind& k) {
      return k.window == kind.window && k.num_heads == kind.num_heads && k.group == kind.group;
    };
    const auto found = std::find_if(attend_kinds_.begin(), attend_kinds_.end(), same);
    op.schedule = static_cast<int>(found - attend_kinds_.begin());
    if (found == attend_kinds_.end()) attend_kinds_.push_back(kind);
  }
  ops_.push_back(op);
}

void Program::finish(int64_t max_tokens) {
  require(max_tokens > 0, "a step needs room for at least one token");
  require(stages_.empty(), "the program is finished already");
  check_buffer(output_, -1);
  const auto selects = [](const Op& op) { return op.kind == OpKind::kSelectRows; };
  require(std::count_if(ops_.begin(), ops_.end(), selects) == 1, "a program selects the rows whose logits are wanted");
  max_tokens_ = max_tokens;
  rewrite();
  group_ops();
  note_hidden();
  note_lifetimes();
  note_scopes();
  lay_out();
}

void Program::group_ops() {
  std::vector<char> taken(ops_.size(), 0);
  bool head = false;
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (taken[i]) continue;
    switch (ops_[i].kind) {
      case OpKind::kLinear:
      case OpKind::kGatedLinear:
        add_linear_stage(i, taken, head);
        break;
      case OpKind::kAttend:
        require(!head, "attention comes before the rows are selected");
        stages_.push_back({Stage::Kind::kAttend, head, {ops_[i]}, {}, {}});
        break;
      case OpKind::kSelectRows:
        head = true;
        add_rows_op(ops_[i], head);
        break;
      default:
        add_rows_op(ops_[i], head);
    }
  }
}

void Program::add_rows_op(const Op& op, bool head) {
  const bool joins = !stages_.empty() && stages_.back().kind == Stage::Kind::kRows && stages_.back().head == head;
  if (!joins) stages_.push_back({Stage::Kind::kRows, head, {}, {}, {}});
  stages_.back().ops.push_back(op);
}

// Every later product of the same input joins, until that is written over; but not one that adds to a buffer, which
// another operation may have to read before.
void Program::add_linear_stage(size_t first, std::vector<char>& taken, bool head) {
  Stage stage{Stage::Kind::kLinear, head, {}, {}, {}};
  size_t column = 0;
  for (size_t i = first; i < ops_.size() && (head || ops_[i].kind != OpKind::kSelectRows); ++i) {
    const Op& op = ops_[i];
    if (i > first && op.kind != OpKind::kWriteKV && &storage_of(op.out) == &storage_of(ops_[first].x)) break;
    const bool product = op.kind == OpKind::kGatedLinear || (op.kind == OpKind::kLinear && (op.y < 0 || i == first));
    if (taken[i] || !product || op.x != ops_[first].x) continue;
    taken[i] = 1;
    const Weight& weight = op.weight->weight();
    const auto same = [&](const Rounding& r) { return r.form == weight.form; };
    auto found = std::find_if(stage.roundings.begin(), stage.roundings.end(), same);
    stage.rounding_of.push_back(static_cast<int>(found - stage.roundings.begin()));
    stage.ops.push_back(op);
    if (found != stage.roundings.end()) continue;
    const size_t row_bytes = kernels_->activation_bytes(weight.form, weight.cols);
    stage.roundings.push_back({op.x, weight.form, weight.cols, row_bytes, column});
    column += row_bytes;
  }
  rounded_row_bytes_ = std::max(rounded_row_bytes_, column);
  const bool joins = !stages_.empty() && stages_.back().kind == Stage::Kind::kRows && stages_.back().head == head;
  if (!joins) stages_.push_back({Stage::Kind::kRows, head, {}, {}, {}});
  stages_.back().roundings = stage.roundings;
  stages_.push_back(std::move(stage));
}

// At the end of the stage before a product what it multiplies is whole, since it is rounded there.
void Program::note_hidden() {
  for (size_t s = stages_.size(); s > 0 && hidden_ < 0; --s) {
    const Stage& stage = stages_[s - 1];
    if (!stage.head || stage.kind != Stage::Kind::kLinear) continue;
    hidden_ = stage.ops[0].x;
    hidden_end_ = s - 1;
  }
}

}  // namespace octavo

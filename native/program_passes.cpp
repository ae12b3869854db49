// What a traced program is rewritten into before it is grouped: the same values by fewer passes over memory. A family's
// program says what is computed; that a product's tiles can add, or multiply by an activation, on their way out is
// decided here. Values are rounded as without these passes: every result is the same to the last bit.
#include <algorithm>
#include <utility>

#include "program.h"

namespace octavo {

// By storage: where in the list of operations it is written and read.
struct Program::Uses {
  std::vector<std::vector<size_t>> writers, readers;

  explicit Uses(const Program& program)
      : writers(program.storages_.size()), readers(program.storages_.size()), program_(program) {
    for (size_t i = 0; i < program.ops_.size(); ++i) {
      const Op& op = program.ops_[i];
      for (const int buffer : buffers_read(op)) readers[storage(buffer)].push_back(i);
      if (op.kind != OpKind::kWriteKV) writers[storage(op.out)].push_back(i);
    }
  }

  // The only operation that writes the buffer, if only `reader` reads it and nobody else sees it; else -1.
  int64_t only_writer(int buffer, size_t reader) const {
    const std::vector<size_t>& writes = writers[storage(buffer)];
    const std::vector<size_t>& reads = readers[storage(buffer)];
    const bool between = writes.size() == 1 && reads.size() == 1 && reads[0] == reader;
    return between && program_.is_whole(buffer) && buffer != program_.output_ ? static_cast<int64_t>(writes[0]) : -1;
  }

  // What `from` was is part of `to` now.
  void merge(size_t from, size_t to) {
    for (std::vector<std::vector<size_t>>* each : {&writers, &readers}) {
      std::vector<size_t>& all = (*each)[to];
      all.insert(all.end(), (*each)[from].begin(), (*each)[from].end());
      std::sort(all.begin(), all.end());
      (*each)[from].clear();
    }
  }

  size_t storage(int buffer) const {
    return static_cast<size_t>(program_.buffers_[static_cast<size_t>(buffer)].storage);
  }

 private:
  const Program& program_;
};

namespace {

void erase(std::vector<Op>& ops, const std::vector<char>& dropped) {
  std::vector<Op> kept;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!dropped[i]) kept.push_back(ops[i]);
  }
  ops = std::move(kept);
}

// May run on some rows of a step alone: looks neither at positions nor at slots.
bool takes_any_rows(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
    case OpKind::kAddPosition:
    case OpKind::kRope:
    case OpKind::kWriteKV:
    case OpKind::kAttend:
    case OpKind::kSelectRows: return false;
    default: return true;
  }
}

// May write over what it reads. Norms could, but what they write is often read by a rounding only, and then each thread
// may have it for itself.
bool works_in_place(const Op& op) {
  switch (op.kind) {
    case OpKind::kLinear: return op.y >= 0;
    case OpKind::kRope:
    case OpKind::kActMul:
    case OpKind::kActivation:
    case OpKind::kAdd:
    case OpKind::kMul:
    case OpKind::kScale:
    case OpKind::kSoftcap: return true;
    default: return false;
  }
}

bool same_shape(const Weight& a, const Weight& b) {
  return a.form == b.form && a.has_min == b.has_min && a.rows == b.rows && a.cols == b.cols;
}

}  // namespace

void Program::rewrite() {
  raise_selection();
  fuse_gates();
  fuse_residuals();
  reuse_in_place();
}

// The buffer has its storage to itself.
bool Program::is_whole(int buffer) const {
  const int storage = buffers_[static_cast<size_t>(buffer)].storage;
  return std::count_if(buffers_.begin(), buffers_.end(), [&](const Buffer& b) { return b.storage == storage; }) == 1;
}

// In the operations from `first` on.
void Program::rename(size_t first, int from, int to) {
  for (size_t i = first; i < ops_.size(); ++i) {
    for (int* buffer : {&ops_[i].out, &ops_[i].x, &ops_[i].y}) {
      if (*buffer == from) *buffer = to;
    }
  }
  if (output_ == from) output_ = to;
}

// Behind the last attention only the rows whose logits are wanted matter: they are selected there, not before the head.
void Program::raise_selection() {
  const auto is = [&](OpKind kind) { return [kind](const Op& op) { return op.kind == kind; }; };
  const auto select = std::find_if(ops_.begin(), ops_.end(), is(OpKind::kSelectRows));
  const auto attend = std::find_if(ops_.rbegin(), ops_.rend(), is(OpKind::kAttend)).base();  // the one behind it
  if (attend == ops_.begin() || select < attend) return;
  if (!std::all_of(attend, select, [](const Op& op) { return takes_any_rows(op.kind); })) return;
  const size_t begin = static_cast<size_t>(attend - ops_.begin()), end = static_cast<size_t>(select - ops_.begin());
  std::vector<char> written_before(storages_.size(), 0), seen(buffers_.size(), 0);
  const auto storage = [&](int buffer) {
    return static_cast<size_t>(buffers_[static_cast<size_t>(buffer)].storage);
  };
  for (size_t i = 0; i < begin; ++i) {
    if (ops_[i].kind != OpKind::kWriteKV) written_before[storage(ops_[i].out)] = 1;
  }
  std::vector<int> brought;
  for (size_t i = begin; i <= end; ++i) {
    if (written_before[storage(ops_[i].out)]) return;  // half written on either side
    for (const int buffer : buffers_read(ops_[i])) {
      if (!written_before[storage(buffer)] || seen[static_cast<size_t>(buffer)]) continue;
      seen[static_cast<size_t>(buffer)] = 1;
      brought.push_back(buffer);
    }
  }
  const Op selected = ops_[end];
  ops_.erase(ops_.begin() + static_cast<int64_t>(end));
  rename(begin, selected.out, selected.x);
  std::vector<Op> selections;
  for (const int buffer : brought) {
    Op op;
    op.kind = OpKind::kSelectRows;
    op.x = buffer;
    op.out = add_buffer(width(buffer));
    rename(begin, buffer, op.out);
    selections.push_back(op);
  }
  ops_.insert(ops_.begin() + static_cast<int64_t>(begin), selections.begin(), selections.end());
}

// gate and up of one input, multiplied by nobody else: one product that activates and multiplies what its tiles hold.
void Program::fuse_gates() {
  const Uses uses(*this);
  std::vector<char> dropped(ops_.size(), 0);
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (op.kind != OpKind::kActMul || op.x == op.y) continue;
    const int64_t gate_at = uses.only_writer(op.x, i), up_at = uses.only_writer(op.y, i);
    if (gate_at < 0 || up_at < 0) continue;
    Op& gate = ops_[static_cast<size_t>(gate_at)];
    const Op& up = ops_[static_cast<size_t>(up_at)];
    if (gate.kind != OpKind::kLinear || up.kind != OpKind::kLinear || gate.x != up.x) continue;
    if (!same_shape(gate.weight->weight(), up.weight->weight())) continue;
    gate.kind = OpKind::kGatedLinear;
    gate.activation = op.activation;
    gate.up = up.weight;
    gate.up_bias = up.bias;
    gate.out = op.out;
    dropped[static_cast<size_t>(up_at)] = dropped[i] = 1;
  }
  erase(ops_, dropped);
}

// A product that is only added to something known before: the tiles add.
void Program::fuse_residuals() {
  const Uses uses(*this);
  std::vector<char> dropped(ops_.size(), 0);
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op& op = ops_[i];
    if (op.kind != OpKind::kAdd || op.x == op.y) continue;
    for (const auto& [product, other] : {std::pair{op.y, op.x}, std::pair{op.x, op.y}}) {
      const int64_t at = uses.only_writer(product, i);
      if (at < 0) continue;
      Op& linear = ops_[static_cast<size_t>(at)];
      const std::vector<size_t>& writes = uses.writers[uses.storage(other)];
      const auto before = [&](size_t w) { return static_cast<int64_t>(w) < at; };
      if (linear.kind != OpKind::kLinear || linear.y >= 0 || !std::all_of(writes.begin(), writes.end(), before)) {
        continue;
      }
      linear.y = other;
      linear.out = op.out;
      dropped[i] = 1;
      break;
    }
  }
  erase(ops_, dropped);
}

// What is read for the last time is written over.
void Program::reuse_in_place() {
  Uses uses(*this);
  for (size_t i = 0; i < ops_.size(); ++i) {
    const Op op = ops_[i];
    if (!works_in_place(op) || !is_whole(op.out) || uses.writers[uses.storage(op.out)].size() != 1) continue;
    for (const int over : {op.kind == OpKind::kLinear ? op.y : op.x, op.y}) {
      if (over < 0 || over == op.out || over == output_ || !is_whole(over) || width(over) != width(op.out)) continue;
      if (uses.readers[uses.storage(over)].back() != i || uses.writers[uses.storage(over)].back() > i) continue;
      uses.merge(uses.storage(op.out), uses.storage(over));
      rename(i, op.out, over);
      break;
    }
  }
}

}  // namespace octavo

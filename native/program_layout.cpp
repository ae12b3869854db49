// Where buffers lie: how long each lives, which may be a thread's own, and memory shared by those never alive at once.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace octavo {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// Memory wanted for the stages [first, last], and where to say it lies.
struct Span {
  size_t bytes;
  int first, last;
  size_t* offset;
};

// The largest first, each at the first offset that fits among the spans alive at once; a program has hundreds, so the
// square does not matter. Returns the bytes used.
size_t place_all(std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.bytes > b.bytes; });
  std::vector<const Span*> placed;  // by offset
  size_t used = 0;
  for (const Span& span : spans) {
    size_t offset = 0;
    for (const Span* other : placed) {
      const bool apart = other->last < span.first || span.last < other->first;
      if (apart || *other->offset + other->bytes <= offset) continue;
      if (offset + span.bytes <= *other->offset) break;
      offset = *other->offset + other->bytes;
    }
    *span.offset = offset;
    used = std::max(used, offset + span.bytes);
    const auto after = [](const Span* a, const Span* b) { return *a->offset < *b->offset; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &span, after), &span);
  }
  return used;
}

size_t rows_bytes(const Place& place, int64_t rows) {
  return static_cast<size_t>(place.stride * rows) * sizeof(float);
}

}  // namespace

void Program::note_lifetimes() {
  const int last = static_cast<int>(stages_.size()) - 1;
  for (int s = 0; s <= last; ++s) {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    for (const Op& op : stage.ops) {
      const bool product = op.kind == OpKind::kLinear || op.kind == OpKind::kGatedLinear;
      for (const int buffer : buffers_read(op)) {
        if (buffer == op.out && op.kind == OpKind::kCopy) continue;
        Storage& in = storage_of(buffer);
        require(in.first_stage >= 0, "a buffer is read before it is written");
        require(in.head == stage.head || op.kind == OpKind::kSelectRows, "the head reads selected rows only");
        const bool rounded = product && buffer == op.x;  // read in the stage before
        in.last_stage = std::max(in.last_stage, op.kind == OpKind::kSelectRows ? last : rounded ? s - 1 : s);
      }
      if (op.kind == OpKind::kWriteKV) continue;
      Storage& out = storage_of(op.out);
      if (out.first_stage < 0) out.first_stage = s, out.head = stage.head;
      out.last_stage = std::max(out.last_stage, s);
    }
  }
  Storage& output = storage_of(output_);
  require(output.first_stage >= 0 && output.head, "the output is written by the head");
  output.last_stage = last + 1;
}

// Which storages end inside their segment; which stages of rows write nothing that another stage reads.
void Program::note_scopes() {
  std::vector<int> segment_of;
  int segment = 0;
  for (const Stage& stage : stages_) {  // an attention is one of its own
    if (stage.kind == Stage::Kind::kAttend) ++segment;
    segment_of.push_back(segment);
    if (stage.kind == Stage::Kind::kAttend) ++segment;
  }
  segment_of.push_back(segment);  // the output lives on behind the last stage
  for (Storage& storage : storages_) {
    if (storage.first_stage < 0) continue;
    const size_t last = static_cast<size_t>(storage.last_stage);
    const bool inside = segment_of[static_cast<size_t>(storage.first_stage)] == segment_of[last];
    const bool selected_from = !storage.head && stages_[last].head;
    storage.place.scope = storage.head || (inside && !selected_from) ? Scope::kBlock : Scope::kStep;
  }
  for (size_t s = 0; s + 1 < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    if (stage.kind != Stage::Kind::kRows || stages_[s + 1].kind != Stage::Kind::kLinear) continue;
    const int at = static_cast<int>(s);
    const auto overwritten = [&](int buffer) {  // by the products, while another thread may read it still
      const std::vector<Op>& products = stages_[s + 1].ops;
      return std::any_of(products.begin(), products.end(), [&](const Op& p) {
        return &storage_of(p.out) == &storage_of(buffer);
      });
    };
    stage.own = std::all_of(stage.ops.begin(), stage.ops.end(), [&](const Op& op) {
      if (op.kind == OpKind::kWriteKV || op.kind == OpKind::kRope) return false;  // each row's table has one maker
      const Storage& out = storage_of(op.out);
      const std::vector<int> read = buffers_read(op);
      return out.first_stage == at && out.last_stage == at && std::none_of(read.begin(), read.end(), overwritten);
    });
    if (!stage.own) continue;
    for (const Op& op : stage.ops) storage_of(op.out).place.own = true;
  }
}

// Stages that no barrier parts have one number: a stage of rows that is `own` and the products behind it.
std::vector<int> Program::number_units() const {
  std::vector<int> units;
  int unit = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (s > 0 && !stages_[s - 1].own) ++unit;
    units.push_back(unit);
  }
  units.push_back(unit + 1);
  return units;
}

// What crosses attention has its memory for whole segments: another thread may be at the segment's other end.
void Program::lay_out() {
  const std::vector<int> units = number_units();
  const auto is_attend = [&](int s) {
    return s >= 0 && s < static_cast<int>(stages_.size()) &&
           stages_[static_cast<size_t>(s)].kind == Stage::Kind::kAttend;
  };
  std::vector<Span> shared, arena;
  for (Storage& storage : storages_) {
    if (storage.first_stage < 0) continue;
    int first = storage.first_stage, last = storage.last_stage;
    int64_t rows = storage.head ? kMaxHeadRows : std::min(max_tokens_, kMaxSharedRows);
    if (storage.place.scope == Scope::kStep) {
      while (first > 0 && !is_attend(first) && !is_attend(first - 1)) --first;
      while (last + 1 < static_cast<int>(stages_.size()) && !is_attend(last) && !is_attend(last + 1)) ++last;
      rows = max_tokens_;
    } else {
      arena.push_back({rows_bytes(storage.place, kMaxBlockRows), first, last, &storage.place.arena_offset});
    }
    shared.push_back({rows_bytes(storage.place, rows), units[static_cast<size_t>(first)],
                      units[static_cast<size_t>(last)], &storage.place.offset});
  }
  workspace_bytes_ = place_all(std::move(shared));
  arena_rounded_at_ = place_all(std::move(arena));
  arena_bytes_ = arena_rounded_at_ + rounded_row_bytes_ * static_cast<size_t>(kMaxBlockRows);
}

}  // namespace octavo

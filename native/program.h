// A model as the native side runs it: operations on buffers, rewritten (program_passes.cpp), grouped into stages.
//
//   rows    operations that treat a row alone; then the rounding of what the next stage multiplies
//   linear  products that share their rounded input (q, k, v), each with what its tiles can do on the way out
//   attend  attention, split by cost
//
// Only attention looks at other rows. So the stages between two attentions, a segment, run in one of two ways (runner.h):
// all rows in step, or block by block of rows, each thread its own. Buffers that end inside a segment need no row a
// token then, but one a row of a block.
//
// Operations after SelectRows form the head: its stages run over at most kMaxHeadRows wanted rows at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "packed_weight.h"

namespace octavo {

constexpr int64_t kMaxHeadRows = 64;
constexpr int64_t kMaxSharedRows = 1024;  // of a step whose threads run its segments in step
constexpr int64_t kMaxBlockRows = 64;     // of a block that a thread runs through a segment alone

enum class OpKind : uint8_t {
  kEmbed, kAddPosition, kRmsNorm, kLayerNorm, kLinear, kGatedLinear, kCopy, kRope, kWriteKV, kAttend, kActMul, kActivation, kAdd,
  kMul, kScale, kSoftcap, kSelectRows,
};

// Which fields an operation uses stands beside each; buffers are numbers given by Program::add_buffer.
struct Op {
  OpKind kind;
  int out = -1;
  int x = -1;                            // kActMul: gate; kAdd, kMul: a; kWriteKV: k; kAttend: q
  int y = -1;                            // kActMul: up; kAdd, kMul: b; kWriteKV: v; kLinear: what is added, or -1
  const PackedWeight* weight = nullptr;  // kEmbed, kAddPosition, kLinear; kGatedLinear: the gate's
  const PackedWeight* up = nullptr;      // kGatedLinear
  const float* vector = nullptr;         // norms: weight; kAttend: sinks or null
  const float* bias = nullptr;           // kLinear, kGatedLinear (or null), kLayerNorm
  const float* up_bias = nullptr;        // kGatedLinear, or null
  float value = 0.0f;                    // norms: eps; kScale: factor; kSoftcap: cap; kAttend: scale
  float softcap = 0.0f;                  // kAttend: 0 for none
  int64_t at = 0;         // kAddPosition: offset; kRmsNorm: group; kCopy: first column of out; kAttend: num_heads
  int64_t head_dim = 0;   // kRope
  int index = 0;          // kRope: table; kWriteKV, kAttend: layer; kAttend's schedule is `schedule`
  int schedule = 0;
  Activation activation = Activation::kSilu;
};

// cos and sin of a step's positions: angle of pair i at position p = p * inv_freq[i].
struct RopeTable {
  std::vector<double> inv_freq;
  double factor;
};

// A distinct way to split attention: layers with equal numbers share one.
struct AttendKind {
  int64_t window;
  int64_t num_heads;
  int group;
};

struct LayerPlace {
  int group;
  int64_t index;  // inside its group
  int64_t window;
};

struct Rounding {
  int buffer;
  Form form;
  int64_t cols;
  size_t row_bytes;
  size_t column;  // bytes of a row's other roundings before this one
};

struct Stage {
  enum class Kind : uint8_t { kRows, kLinear, kAttend };
  Kind kind;
  bool head;
  std::vector<Op> ops;
  std::vector<Rounding> roundings;  // kRows: made at its end; kLinear: read
  std::vector<int> rounding_of;     // kLinear: for each op
  bool own = false;  // kRows: nobody reads what it writes but its own roundings, so each thread may make its own
};

// How long a buffer lives, and so where its rows lie.
enum class Scope : uint8_t {
  kStep,   // across attention: a row a token of the step
  kBlock,  // inside a segment, or inside the head: a row a row of what runs at once
};

// Row r of a buffer: `offset` + r * stride * 4 bytes into the workspace; or, of a kBlock buffer that a thread has for
// itself, `arena_offset` + (r - first row of its block) * stride * 4 bytes into its arena.
struct Place {
  size_t offset;
  size_t arena_offset;
  int64_t stride;
  Scope scope;
  bool own;  // written in a stage that is `own`
};

// The buffers an operation reads where it runs; what a product multiplies is read by the rounding before it.
std::vector<int> buffers_read(const Op& op);

class Program {
 public:
  Program(const Kernels& kernels, int64_t num_kv_heads, int64_t head_dim, std::vector<LayerPlace> layers);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Building. Widths, buffers and layers are checked: std::invalid_argument.
  int add_buffer(int64_t width);
  int add_view(int buffer, int64_t begin, int64_t end);  // columns [begin, end) of an earlier buffer
  const float* add_vector(const float* values, int64_t count);
  int add_rope(std::vector<double> inv_freq, double factor);
  void add(Op op);
  void set_output(int buffer) { output_ = buffer; }

  // Groups the operations and lays the buffers out, for steps of at most max_tokens. Once, after the last `add`.
  void finish(int64_t max_tokens);

  const Kernels& kernels() const { return *kernels_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const std::vector<RopeTable>& ropes() const { return ropes_; }
  const std::vector<AttendKind>& attend_kinds() const { return attend_kinds_; }
  const std::vector<LayerPlace>& layers() const { return layers_; }
  const LayerPlace& layer(int index) const { return layers_[static_cast<size_t>(index)]; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t max_tokens() const { return max_tokens_; }
  int output() const { return output_; }
  // The final hidden state: what the head's last product multiplies. -1 where the head has no product.
  int hidden() const { return hidden_; }
  // The number of that product's stage; the stages of the head before it make the hidden state.
  size_t hidden_end() const { return hidden_end_; }
  int64_t width(int buffer) const { return buffers_[static_cast<size_t>(buffer)].width; }
  int64_t stride(int buffer) const { return storage_of(buffer).place.stride; }
  Place place(int buffer) const {
    Place place = storage_of(buffer).place;
    const size_t column = static_cast<size_t>(buffers_[static_cast<size_t>(buffer)].column) * sizeof(float);
    place.offset += column;
    place.arena_offset += column;
    return place;
  }
  size_t workspace_bytes() const { return workspace_bytes_; }
  size_t rounded_row_bytes() const { return rounded_row_bytes_; }  // of all roundings a stage makes of a row
  size_t arena_bytes() const { return arena_bytes_; }              // a thread, its rounded rows included, which lie
  size_t arena_rounded_at() const { return arena_rounded_at_; }    // here

 private:
  struct Buffer {
    int64_t width;
    int64_t column;  // where it begins in its storage
    int storage;
  };
  struct Storage {
    Place place;
    bool head = false;
    int first_stage = -1, last_stage = -1;
  };
  struct Uses;  // who writes and who reads each storage

  const Storage& storage_of(int buffer) const {
    return storages_[static_cast<size_t>(buffers_[static_cast<size_t>(buffer)].storage)];
  }
  Storage& storage_of(int buffer) {
    return storages_[static_cast<size_t>(buffers_[static_cast<size_t>(buffer)].storage)];
  }
  void check_buffer(int buffer, int64_t width) const;
  void check(const Op& op) const;

  void rewrite();
  void raise_selection();
  void fuse_gates();
  void fuse_residuals();
  void reuse_in_place();
  void rename(size_t first, int from, int to);
  bool is_whole(int buffer) const;

  void group_ops();
  void add_rows_op(const Op& op, bool head);
  void add_linear_stage(size_t first, std::vector<char>& taken, bool head);
  void note_hidden();
  void note_lifetimes();
  void note_scopes();
  std::vector<int> number_units() const;
  void lay_out();

  const Kernels* kernels_;
  int64_t num_kv_heads_, head_dim_;
  std::vector<LayerPlace> layers_;
  std::vector<Buffer> buffers_;
  std::vector<Storage> storages_;
  std::vector<std::unique_ptr<float[]>> vectors_;
  std::vector<RopeTable> ropes_;
  std::vector<AttendKind> attend_kinds_;
  std::vector<Op> ops_;
  std::vector<Stage> stages_;
  int output_ = -1;
  int hidden_ = -1;
  size_t hidden_end_ = 0;
  int64_t max_tokens_ = 0;
  size_t workspace_bytes_ = 0, rounded_row_bytes_ = 0, arena_bytes_ = 0, arena_rounded_at_ = 0;
};

}  // namespace octavo

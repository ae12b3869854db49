// Building and running a program from Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "arena.h"
#include "arrays.h"
#include "bindings.h"
#include "program.h"
#include "runner.h"

namespace nb = nanobind;

namespace octavo {

namespace {

Activation activation_from(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  throw std::invalid_argument("activation " + name + " is unknown; known: silu, gelu, gelu_tanh, relu");
}

Op operation(OpKind kind, int out, int x, int y = -1) {
  Op op;
  op.kind = kind;
  op.out = out;
  op.x = x;
  op.y = y;
  return op;
}

const float* keep(Program& program, const Vector& values) { return program.add_vector(values.data(), extent(values, 0)); }

void add_embed(Program& program, int out, const PackedWeight& weight) {
  Op op = operation(OpKind::kEmbed, out, -1);
  op.weight = &weight;
  program.add(op);
}

void add_add_position(Program& program, int out, int x, const PackedWeight& weight, int64_t offset) {
  Op op = operation(OpKind::kAddPosition, out, x);
  op.weight = &weight;
  op.at = offset;
  program.add(op);
}

void add_rms_norm(Program& program, int out, int x, Vector weight, float eps) {
  Op op = operation(OpKind::kRmsNorm, out, x);
  op.vector = keep(program, weight);
  op.at = extent(weight, 0);
  op.value = eps;
  program.add(op);
}

void add_layer_norm(Program& program, int out, int x, Vector weight, Vector bias, float eps) {
  Op op = operation(OpKind::kLayerNorm, out, x);
  require(extent(weight, 0) == program.width(out) && extent(bias, 0) == program.width(out),
          "a norm's weight and bias are as wide as its buffer");
  op.vector = keep(program, weight);
  op.bias = keep(program, bias);
  op.value = eps;
  program.add(op);
}

void add_linear(Program& program, int out, int x, const PackedWeight& weight, std::optional<Vector> bias) {
  Op op = operation(OpKind::kLinear, out, x);
  require(&weight.kernels() == &program.kernels(), "the weight was packed for another instruction set");
  op.weight = &weight;
  if (bias) {
    require(extent(*bias, 0) == weight.weight().rows, "a bias has an entry a row of its weight");
    op.bias = keep(program, *bias);
  }
  program.add(op);
}

void add_copy(Program& program, int out, int x, int64_t column) {
  Op op = operation(OpKind::kCopy, out, x);
  op.at = column;
  program.add(op);
}

void add_rope(Program& program, int out, int x, int64_t head_dim, std::vector<double> inv_freq, double factor) {
  Op op = operation(OpKind::kRope, out, x);
  op.head_dim = head_dim;
  op.index = program.add_rope(std::move(inv_freq), factor);
  program.add(op);
}

void add_write_kv(Program& program, int layer, int k, int v) {
  Op op = operation(OpKind::kWriteKV, -1, k, v);
  op.index = layer;
  program.add(op);
}

void add_attend(Program& program, int out, int q, int layer, int64_t num_heads, float scale, float softcap,
                std::optional<Vector> sinks) {
  Op op = operation(OpKind::kAttend, out, q);
  op.index = layer;
  op.at = num_heads;
  op.value = scale;
  op.softcap = softcap;
  if (sinks) {
    require(extent(*sinks, 0) == num_heads, "sinks have an entry a head");
    op.vector = keep(program, *sinks);
  }
  program.add(op);
}

void add_act_mul(Program& program, int out, int gate, int up, const std::string& activation) {
  Op op = operation(OpKind::kActMul, out, gate, up);
  op.activation = activation_from(activation);
  program.add(op);
}

void add_activation(Program& program, int out, int x, const std::string& activation) {
  Op op = operation(OpKind::kActivation, out, x);
  op.activation = activation_from(activation);
  program.add(op);
}

void add_scale(Program& program, int out, int x, float factor) {
  Op op = operation(OpKind::kScale, out, x);
  op.value = factor;
  program.add(op);
}

void add_softcap(Program& program, int out, int x, float cap) {
  Op op = operation(OpKind::kSoftcap, out, x);
  op.value = cap;
  program.add(op);
}

void init_program(Program* self, const std::string& isa, int64_t num_kv_heads, int64_t head_dim,
                  const std::vector<std::tuple<int, int64_t, int64_t>>& layers) {
  std::vector<LayerPlace> places;
  for (const auto& [group, index, window] : layers) places.push_back({group, index, window});
  new (self) Program(kernels_for(isa), num_kv_heads, head_dim, std::move(places));
}

// Copies the wanted rows' logits out and takes the greatest of each.
class Greedy : public HeadConsumer {
 public:
  Greedy(int64_t vocab_size, int32_t* tokens, float* logits)
      : vocab_size_(vocab_size), tokens_(tokens), logits_(logits) {}
  void take(int64_t index, const float* logits, int) noexcept override {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab_size_; ++i) best = logits[i] > logits[best] ? i : best;
    tokens_[index] = static_cast<int32_t>(best);
    if (logits_ != nullptr) std::copy(logits, logits + vocab_size_, logits_ + index * vocab_size_);
  }

 private:
  int64_t vocab_size_;
  int32_t* tokens_;
  float* logits_;
};

void run(Runner& runner, Ints row_ids, Ints token_ids, Ints positions, std::vector<Longs> slots, Ints query_start,
         Ints seq_lens, std::vector<Table> block_tables, Ints wanted, Array<int32_t, 1> tokens,
         std::optional<OutMatrix> logits, int64_t vocab_size) {
  StepArrays step{};
  step.num_tokens = extent(token_ids, 0);
  step.num_seqs = extent(row_ids, 0);
  require(extent(positions, 0) == step.num_tokens, "positions: an entry a token");
  require(extent(query_start, 0) == step.num_seqs + 1 && extent(seq_lens, 0) == step.num_seqs,
          "query_start_loc and seq_lens: an entry a sequence");
  step.row_ids = row_ids.data();
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.query_start = query_start.data();
  step.seq_lens = seq_lens.data();
  for (const Longs& s : slots) {
    require(extent(s, 0) == step.num_tokens, "slot_mapping: an entry a token");
    step.slots.push_back(s.data());
  }
  for (const Table& table : block_tables) {
    step.block_tables.push_back(table.data());
    step.table_rows = extent(table, 0);
    step.table_stride = extent(table, 1);
  }
  const std::vector<int32_t> rows(wanted.data(), wanted.data() + extent(wanted, 0));
  Greedy greedy(vocab_size, tokens.data(), logits ? logits->data() : nullptr);
  const nb::gil_scoped_release release;
  runner.run(step, rows, greedy);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program", "A model as a list of operations on numbered buffers.")
      .def("__init__", &init_program, nb::arg("isa"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("layers"))
      .def_prop_ro("isa", [](const Program& p) { return std::string(p.kernels().isa); })
      .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
      .def_prop_ro("num_stages", [](const Program& p) { return p.stages().size(); })
      .def("buffer", &Program::add_buffer, nb::arg("width"))
      .def("view", &Program::add_view, nb::arg("buffer"), nb::arg("begin"), nb::arg("end"))
      .def("embed", &add_embed, nb::arg("out"), nb::arg("weight"), nb::keep_alive<1, 3>())
      .def("add_position", &add_add_position, nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("offset"),
           nb::keep_alive<1, 4>())
      .def("rms_norm", &add_rms_norm, nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"))
      .def("layer_norm", &add_layer_norm, nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias"),
           nb::arg("eps"))
      .def("linear", &add_linear, nb::arg("out"), nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(),
           nb::keep_alive<1, 4>())
      .def("copy", &add_copy, nb::arg("out"), nb::arg("x"), nb::arg("column"))
      .def("rope", &add_rope, nb::arg("out"), nb::arg("x"), nb::arg("head_dim"), nb::arg("inv_freq"),
           nb::arg("attention_factor"))
      .def("write_kv", &add_write_kv, nb::arg("layer"), nb::arg("k"), nb::arg("v"))
      .def("attend", &add_attend, nb::arg("out"), nb::arg("q"), nb::arg("layer"), nb::arg("num_heads"),
           nb::arg("scale"), nb::arg("softcap"), nb::arg("sinks").none())
      .def("act_mul", &add_act_mul, nb::arg("out"), nb::arg("gate"), nb::arg("up"), nb::arg("activation"))
      .def("activation", &add_activation, nb::arg("out"), nb::arg("x"), nb::arg("activation"))
      .def("add", [](Program& p, int out, int a, int b) { p.add(operation(OpKind::kAdd, out, a, b)); }, nb::arg("out"),
           nb::arg("a"), nb::arg("b"))
      .def("mul", [](Program& p, int out, int a, int b) { p.add(operation(OpKind::kMul, out, a, b)); }, nb::arg("out"),
           nb::arg("a"), nb::arg("b"))
      .def("scale", &add_scale, nb::arg("out"), nb::arg("x"), nb::arg("factor"))
      .def("softcap", &add_softcap, nb::arg("out"), nb::arg("x"), nb::arg("cap"))
      .def("select_rows", [](Program& p, int out, int x) { p.add(operation(OpKind::kSelectRows, out, x)); },
           nb::arg("out"), nb::arg("x"))
      .def("output", &Program::set_output, nb::arg("x"))
      .def("finish", &Program::finish, nb::arg("max_tokens"));

  nb::class_<Runner>(m, "Runner", "Runs a finished program over steps.")
      .def(nb::init<const Program&, Arena&, ThreadPool&, int64_t>(), nb::arg("program"), nb::arg("arena"),
           nb::arg("pool"), nb::arg("max_model_len"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           nb::keep_alive<1, 4>())
      .def("run", &run);
}

}  // namespace octavo

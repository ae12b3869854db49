// Building a program from Python, and how rows draw.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arena.h"
#include "arrays.h"
#include "bindings.h"
#include "drawing.h"
#include "program.h"

namespace nb = nanobind;

namespace octavo {

namespace {

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

// "rows", "linear x3", "gated x1", "attend", ... as run; products that add on their way out are "linear+", rows that
// each thread may make for itself "own rows"; those of the head after "head:".
std::vector<std::string> stage_names(const Program& program) {
  std::vector<std::string> names;
  for (const Stage& stage : program.stages()) {
    std::string name = stage.head ? "head: " : "";
    switch (stage.kind) {
      case Stage::Kind::kRows: name += stage.own ? "own rows" : "rows"; break;
      case Stage::Kind::kLinear:
        name += stage.ops[0].kind == OpKind::kGatedLinear ? "gated" : stage.ops[0].y >= 0 ? "linear+" : "linear";
        name += " x" + std::to_string(stage.ops.size());
        break;
      case Stage::Kind::kAttend: name += "attend"; break;
    }
    names.push_back(name);
  }
  return names;
}

void init_program(Program* self, const std::string& isa, int64_t num_kv_heads, int64_t head_dim,
                  const std::vector<std::tuple<int, int64_t, int64_t>>& layers) {
  std::vector<LayerPlace> places;
  for (const auto& [group, index, window] : layers) places.push_back({group, index, window});
  new (self) Program(kernels_for(isa), num_kv_heads, head_dim, std::move(places));
}

void init_draw_parameters(DrawParameters* self, double temperature, double top_p, double min_p, int64_t top_k,
                          float repetition_penalty, float frequency_penalty, float presence_penalty,
                          std::vector<int32_t> bias_ids, std::vector<float> biases, uint64_t seed,
                          uint32_t sample_index, int64_t num_prompt_tokens, int64_t min_tokens,
                          std::vector<int32_t> end_token_ids, int64_t num_top) {
  DrawParameters* p = new (self) DrawParameters();
  p->temperature = temperature;
  p->top_p = top_p;
  p->min_p = min_p;
  p->top_k = top_k;
  p->repetition_penalty = repetition_penalty;
  p->frequency_penalty = frequency_penalty;
  p->presence_penalty = presence_penalty;
  p->bias_ids = std::move(bias_ids);
  p->biases = std::move(biases);
  p->seed = seed;
  p->sample_index = sample_index;
  p->num_prompt_tokens = num_prompt_tokens;
  p->min_tokens = min_tokens;
  p->end_token_ids = std::move(end_token_ids);
  p->num_top = num_top;
}

// The best tokens reported for one row or prompt query: `num_top`, or as many as the vocabulary has.
std::vector<std::pair<int32_t, float>> top_of(const Drawing& drawing, int64_t item, int64_t num_top) {
  require(item >= 0 && item < static_cast<int64_t>(drawing.statuses().size()), "no such item");
  std::vector<std::pair<int32_t, float>> top;
  for (int64_t i = 0; i < std::min(num_top, drawing.max_top()); ++i) {
    const size_t at = static_cast<size_t>(item * drawing.max_top() + i);
    if (drawing.top_ids()[at] >= 0) top.emplace_back(drawing.top_ids()[at], drawing.top_logprobs()[at]);
  }
  return top;
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program", "A model as a list of operations on numbered buffers.")
      .def("__init__", &init_program, nb::arg("isa"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("layers"))
      .def_prop_ro("isa", [](const Program& p) { return std::string(p.kernels().isa); })
      .def_prop_ro("workspace_bytes", &Program::workspace_bytes)
      .def_prop_ro("stages", &stage_names)
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

  nb::class_<Drawing>(m, "Drawing", "How each row draws, and what the latest step drew.")
      .def("__init__",
           [](Drawing* self, const std::string& isa, int64_t vocab_size, int64_t num_rows, int num_threads) {
             require(vocab_size > 0 && num_rows > 0 && num_threads > 0, "sizes are at least 1");
             new (self) Drawing(kernels_for(isa), vocab_size, num_rows, num_threads);
           },
           nb::arg("isa"), nb::arg("vocab_size"), nb::arg("num_rows"), nb::arg("num_threads"))
      .def("set_row",
           [](Drawing& drawing, int64_t row, const DrawParameters& parameters) { drawing.set_row(row, parameters); },
           nb::arg("row"), nb::arg("parameters"))
      .def_prop_ro("token_ids", &Drawing::token_ids, nb::rv_policy::copy)
      .def_prop_ro("logprobs", &Drawing::logprobs, nb::rv_policy::copy)
      .def_prop_ro("any_logprobs", &Drawing::any_logprobs)
      .def_prop_ro("any_failed", &Drawing::any_failed)
      .def_prop_ro("statuses",
                   [](const Drawing& d) {
                     const std::vector<uint8_t>& s = d.statuses();
                     return nb::bytes(reinterpret_cast<const char*>(s.data()), s.size());
                   })
      .def("top", &top_of, nb::arg("item"), nb::arg("num_top"));

  nb::class_<DrawParameters>(m, "DrawParameters", "How one row draws.")
      .def("__init__", &init_draw_parameters, nb::kw_only(), nb::arg("temperature"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("top_k"),
           nb::arg("repetition_penalty"), nb::arg("frequency_penalty"), nb::arg("presence_penalty"),
           nb::arg("bias_ids"), nb::arg("biases"), nb::arg("seed"), nb::arg("sample_index"),
           nb::arg("num_prompt_tokens"), nb::arg("min_tokens"), nb::arg("end_token_ids"), nb::arg("num_top"));
}

}  // namespace octavo

// Single kernels of a named instruction set on numpy arrays: what tests and `octavo bench kernels` call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "arena.h"
#include "arrays.h"
#include "attend_schedule.h"
#include "bindings.h"
#include "dispatch.h"
#include "memory.h"
#include "packed_weight.h"

namespace nb = nanobind;

namespace octavo {

namespace {

// Scratch memory, page-aligned.
class Scratch {
 public:
  explicit Scratch(size_t bytes = 0) : bytes_(bytes), data_(map_memory(bytes)) {}
  ~Scratch() { unmap_memory(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  uint8_t* at_least(size_t bytes) {  // what it held is lost
    if (bytes > bytes_) {
      void* larger = map_memory(bytes);
      unmap_memory(data_, bytes_);
      data_ = larger;
      bytes_ = bytes;
    }
    return data();
  }

 private:
  size_t bytes_;
  void* data_;
};

// One table of kernels, by name ("" for the best).
class Ops {
 public:
  explicit Ops(const std::string& isa) : kernels_(&kernels_for(isa)) {}

  std::string isa() const { return kernels_->isa; }

  std::unique_ptr<PackedWeight> pack(Bytes raw, const std::string& type_name, const std::string& form, int64_t rows,
                                     int64_t cols, std::optional<Vector> row_scales) const {
    const TensorType type = tensor_type_from(type_name);
    auto packed = std::make_unique<PackedWeight>(*kernels_, type, form_from(form), rows, cols);
    const FileTensor from = checked_tensor(raw.data(), raw.size(), row_scales ? row_scales->data() : nullptr,
                                           row_scales ? row_scales->size() : 0, type, rows, cols);
    packed->pack(from, 0, packed->weight().num_panels);
    return packed;
  }

  void unpack_row(const PackedWeight& packed, int64_t row, OutVector out) const {
    require(packed.weight().rows > row && row >= 0, "row: outside the weight");
    require(static_cast<int64_t>(out.shape(0)) == packed.weight().cols, "out: needs weight.cols entries");
    kernels_->unpack_row(packed.weight(), row, out.data());
  }

  // Panels are given in steps of `panels_per_call` and rows in steps of `rows_per_call` (0: all in one call), so that
  // a test can show that neither changes a bit. `add`: rows that are added, or none; may be `out`.
  void linear(const PackedWeight& packed, Matrix x, std::optional<Vector> bias, OutMatrix out, int64_t rows_per_call,
              int64_t panels_per_call, std::optional<Matrix> add) const {
    check_product(packed, x, bias, out);
    require(!add || (extent(*add, 0) == extent(x, 0) && extent(*add, 1) >= packed.weight().rows), "add: shaped as out");
    LinearOut to{out.data(), extent(out, 1), bias ? bias->data() : nullptr};
    if (add) to.add = add->data(), to.add_stride = extent(*add, 1);
    in_pieces(packed.weight(), x, rows_per_call, panels_per_call, to,
              [&](const uint8_t* rounded, int64_t count, int64_t begin, int64_t end, const LinearOut& piece) {
                kernels_->linear(packed.weight(), rounded, count, begin, end, piece);
              });
  }

  // out = activation(gate x + bias) * (up x + up_bias).
  void linear_gated(const std::string& name, const PackedWeight& gate, const PackedWeight& up, Matrix x,
                    std::optional<Vector> bias, std::optional<Vector> up_bias, OutMatrix out, int64_t rows_per_call,
                    int64_t panels_per_call) const {
    check_product(gate, x, bias, out);
    check_product(up, x, up_bias, out);
    const Activation kind = activation_from(name);
    const Weight &a = gate.weight(), &b = up.weight();
    require(a.form == b.form && a.has_min == b.has_min && a.rows == b.rows, "gate, up: of one shape and form");
    const LinearOut to{out.data(), extent(out, 1), bias ? bias->data() : nullptr, up_bias ? up_bias->data() : nullptr};
    in_pieces(a, x, rows_per_call, panels_per_call, to,
              [&](const uint8_t* rounded, int64_t count, int64_t begin, int64_t end, const LinearOut& piece) {
                kernels_->linear_gated(kind, a, b, rounded, count, begin, end, piece);
              });
  }

  void rms_norm(Matrix x, Vector weight, float eps, OutMatrix out) const {
    same_shape(x, out);
    const int64_t group = extent(weight, 0);
    require(group > 0 && extent(x, 1) % group == 0, "weight: its length divides x's columns");
    const nb::gil_scoped_release release;
    kernels_->rms_norm(x.data(), extent(x, 1), weight.data(), group, extent(x, 1), eps, extent(x, 0), out.data(),
                       extent(out, 1));
  }

  void layer_norm(Matrix x, Vector weight, Vector bias, float eps, OutMatrix out) const {
    same_shape(x, out);
    require(extent(weight, 0) == extent(x, 1) && extent(bias, 0) == extent(x, 1), "weight, bias: an entry a column");
    kernels_->layer_norm(x.data(), extent(x, 1), weight.data(), bias.data(), extent(x, 1), eps, extent(x, 0),
                         out.data(), extent(out, 1));
  }

  void rope(Matrix x, Matrix cos, Matrix sin, int64_t head_dim, OutMatrix out) const {
    same_shape(x, out);
    require(extent(cos, 0) == extent(x, 0) && extent(sin, 0) == extent(x, 0) && extent(cos, 1) == extent(sin, 1),
            "cos, sin: a row a row of x, of one width");
    require(head_dim >= 2 * extent(cos, 1) && extent(x, 1) % head_dim == 0, "head_dim: divides x's columns");
    kernels_->rope(x.data(), extent(x, 1), cos.data(), sin.data(), extent(x, 1) / head_dim, head_dim,
                   2 * extent(cos, 1), extent(x, 0), out.data(), extent(out, 1));
  }

  void act_mul(const std::string& name, Matrix gate, Matrix up, OutMatrix out) const {
    same_shape(gate, out);
    same_shape(up, out);
    kernels_->act_mul(activation_from(name), gate.data(), extent(gate, 1), up.data(), extent(up, 1), extent(gate, 1),
                      extent(gate, 0), out.data(), extent(out, 1));
  }

  void activation(const std::string& name, Matrix x, OutMatrix out) const {
    same_shape(x, out);
    kernels_->activation(activation_from(name), x.data(), extent(x, 1), extent(x, 1), extent(x, 0), out.data(),
                         extent(out, 1));
  }

  void add(Matrix a, Matrix b, OutMatrix out) const { two(kernels_->add, a, b, out); }
  void mul(Matrix a, Matrix b, OutMatrix out) const { two(kernels_->mul, a, b, out); }
  void scale(Matrix x, float factor, OutMatrix out) const { with_number(kernels_->scale, x, factor, out); }
  void softcap(Matrix x, float cap, OutMatrix out) const { with_number(kernels_->softcap, x, cap, out); }

  void write_kv(Arena& arena, int64_t layer, Matrix k, Matrix v, Longs slots) const {
    const KVLayer kv = arena.layer(layer);
    require(extent(k, 1) == kv.num_kv_heads * kv.head_dim && extent(v, 1) == extent(k, 1),
            "k, v: num_kv_heads * head_dim columns");
    require(extent(v, 0) == extent(k, 0) && extent(slots, 0) == extent(k, 0), "k, v, slots: one row a token");
    for (size_t i = 0; i < slots.size(); ++i) {
      require(slots.data()[i] >= -1 && slots.data()[i] < arena.num_blocks() * arena.block_size(), "no such slot");
    }
    kernels_->write_kv(kv, k.data(), extent(k, 1), v.data(), extent(v, 1), slots.data(), extent(k, 0));
  }

  // Work is scheduled as for `num_threads` threads, and done by this one. Returns the query tokens served together
  // with those of another sequence.
  int64_t attend(const Arena& arena, int64_t layer, Matrix q, Ints query_start_loc, Ints seq_lens, Table block_tables,
              int64_t num_heads, float scale, int64_t window, float softcap, std::optional<Vector> sinks,
              int num_threads, bool share_prefixes, OutMatrix out) const {
    const KVLayer kv = arena.layer(layer);
    same_shape(q, out);
    require(num_threads >= 1 && num_heads >= 1 && num_heads % kv.num_kv_heads == 0 &&
                extent(q, 1) == num_heads * kv.head_dim,
            "q: num_heads * head_dim columns, num_heads a multiple of the KV heads");
    const int64_t num_seqs = extent(seq_lens, 0), heads = num_heads / kv.num_kv_heads;
    require(extent(query_start_loc, 0) == num_seqs + 1 && extent(block_tables, 0) == num_seqs,
            "query_start_loc, block_tables: an entry a sequence");
    require(query_start_loc.data()[num_seqs] == extent(q, 0), "query_start_loc: covers q");
    check_tables(arena, query_start_loc, seq_lens, block_tables, window);
    const StepQueries queries{num_seqs, query_start_loc.data(), seq_lens.data(), block_tables.data(), nullptr,
                              extent(block_tables, 1), arena.block_size()};
    const nb::gil_scoped_release release;
    AttendSchedule schedule;
    schedule.build(queries, {kv.num_kv_heads, heads, kv.dim, window}, num_threads, share_prefixes);
    static thread_local Scratch memory, partial_memory;  // kept, so that a call is not its page faults
    void* scratch = memory.at_least(
        kernels_->attend_scratch_bytes(heads > kRowsPerGroup ? heads : kRowsPerGroup, kv.dim));
    float* partials = reinterpret_cast<float*>(
        partial_memory.at_least(static_cast<size_t>(schedule.partial_floats()) * sizeof(float)));
    const AttendArgs args{kv, q.data(), extent(q, 1), out.data(), extent(out, 1), num_heads, scale, softcap, window,
                          sinks ? sinks->data() : nullptr};
    const AttendSchedule::Piece* const end = schedule.end(num_threads - 1);
    for (const AttendSchedule::Piece* at = schedule.begin(0); at != end; ++at) {
      const AttendPiece piece = schedule.placed(*at, queries, partials);
      AttendPiece next;
      if (at + 1 != end) next = schedule.placed(at[1], queries, partials);
      kernels_->attend(args, piece, at + 1 != end ? &next : nullptr, scratch);
    }
    for (const AttendSchedule::Piece& merge : schedule.merges()) {
      kernels_->attend_merge(args, schedule.placed(merge, queries, partials), scratch);
    }
    return schedule.shared_queries();
  }

 private:
  void check_product(const PackedWeight& packed, const Matrix& x, const std::optional<Vector>& bias,
                     const OutMatrix& out) const {
    const Weight& weight = packed.weight();
    require(&packed.kernels() == kernels_, "weight: packed for another instruction set");
    require(extent(x, 1) == weight.cols, "x: needs weight.cols columns");
    require(extent(out, 0) == extent(x, 0) && extent(out, 1) >= weight.rows,
            "out: needs a row a row of x, and at least weight.rows columns");
    require(!bias || extent(*bias, 0) == weight.rows, "bias: needs weight.rows entries");
  }

  // call(rounded rows, how many, first panel, last panel, where they go) for every piece.
  template <class Call>
  void in_pieces(const Weight& weight, const Matrix& x, int64_t rows_per_call, int64_t panels_per_call,
                 const LinearOut& to, const Call& call) const {
    const nb::gil_scoped_release release;
    const int64_t rows = extent(x, 0);
    const size_t stride = kernels_->activation_bytes(weight.form, weight.cols);
    Scratch rounded(stride * static_cast<size_t>(rows) + 64);
    for (int64_t r = 0; r < rows; ++r) {
      kernels_->round_activation(weight.form, x.data() + r * weight.cols, weight.cols,
                                 rounded.data() + static_cast<size_t>(r) * stride);
    }
    const int64_t row_step = rows_per_call > 0 ? rows_per_call : rows;
    const int64_t panel_step = panels_per_call > 0 ? panels_per_call : weight.num_panels;
    for (int64_t r = 0; r < rows; r += row_step) {
      const int64_t count = r + row_step < rows ? row_step : rows - r;
      LinearOut piece = to;
      piece.out += r * to.stride;
      if (to.add != nullptr) piece.add += r * to.add_stride;
      for (int64_t p = 0; p < weight.num_panels; p += panel_step) {
        const int64_t end = p + panel_step < weight.num_panels ? p + panel_step : weight.num_panels;
        call(rounded.data() + static_cast<size_t>(r) * stride, count, p, end, piece);
      }
    }
  }

  template <class Function>
  static void two(Function function, const Matrix& a, const Matrix& b, const OutMatrix& out) {
    same_shape(a, out);
    same_shape(b, out);
    function(a.data(), extent(a, 1), b.data(), extent(b, 1), extent(a, 1), extent(a, 0), out.data(), extent(out, 1));
  }

  template <class Function>
  static void with_number(Function function, const Matrix& x, float number, const OutMatrix& out) {
    same_shape(x, out);
    function(x.data(), extent(x, 1), number, extent(x, 1), extent(x, 0), out.data(), extent(out, 1));
  }

  static void same_shape(const Matrix& x, const OutMatrix& out) {
    require(extent(x, 0) == extent(out, 0) && extent(x, 1) == extent(out, 1), "inputs and out: one shape");
  }

  static void check_tables(const Arena& arena, const Ints& query_start_loc, const Ints& seq_lens, const Table& tables,
                           int64_t window) {
    for (int64_t s = 0; s < extent(seq_lens, 0); ++s) {
      const int64_t length = seq_lens.data()[s], queries = query_start_loc.data()[s + 1] - query_start_loc.data()[s];
      require(queries >= 1 && length >= queries, "seq_lens: no shorter than the queries");
      require((length - 1) / arena.block_size() < extent(tables, 1), "block_tables: too short");
      const int64_t lowest = window > 0 && length - queries + 1 > window ? length - queries + 1 - window : 0;
      for (int64_t b = lowest / arena.block_size(); b <= (length - 1) / arena.block_size(); ++b) {
        const int32_t block = tables.data()[s * extent(tables, 1) + b];
        require(block >= 0 && block < arena.num_blocks(), "block_tables: no such block");
      }
    }
  }

  const Kernels* kernels_;
};

}  // namespace

void bind_ops(nb::module_& m) {
  nb::class_<Ops>(m, "Ops", "Single kernels of one instruction set.")
      .def(nb::init<const std::string&>(), nb::arg("isa") = "")
      .def_prop_ro("isa", &Ops::isa)
      .def("pack", &Ops::pack, nb::arg("raw"), nb::arg("tensor_type"), nb::arg("form"), nb::arg("rows"),
           nb::arg("cols"), nb::arg("row_scales").none() = nb::none())
      .def("unpack_row", &Ops::unpack_row, nb::arg("weight"), nb::arg("row"), nb::arg("out"))
      .def("linear", &Ops::linear, nb::arg("weight"), nb::arg("x"), nb::arg("bias").none(), nb::arg("out"),
           nb::arg("rows_per_call") = 0, nb::arg("panels_per_call") = 0, nb::arg("add").none() = nb::none())
      .def("linear_gated", &Ops::linear_gated, nb::arg("activation"), nb::arg("gate"), nb::arg("up"), nb::arg("x"),
           nb::arg("bias").none(), nb::arg("up_bias").none(), nb::arg("out"), nb::arg("rows_per_call") = 0,
           nb::arg("panels_per_call") = 0)
      .def("rms_norm", &Ops::rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"))
      .def("layer_norm", &Ops::layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("eps"),
           nb::arg("out"))
      .def("rope", &Ops::rope, nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("head_dim"), nb::arg("out"))
      .def("act_mul", &Ops::act_mul, nb::arg("activation"), nb::arg("gate"), nb::arg("up"), nb::arg("out"))
      .def("activation", &Ops::activation, nb::arg("activation"), nb::arg("x"), nb::arg("out"))
      .def("add", &Ops::add, nb::arg("a"), nb::arg("b"), nb::arg("out"))
      .def("mul", &Ops::mul, nb::arg("a"), nb::arg("b"), nb::arg("out"))
      .def("scale", &Ops::scale, nb::arg("x"), nb::arg("factor"), nb::arg("out"))
      .def("softcap", &Ops::softcap, nb::arg("x"), nb::arg("cap"), nb::arg("out"))
      .def("write_kv", &Ops::write_kv, nb::arg("arena"), nb::arg("layer"), nb::arg("k"), nb::arg("v"),
           nb::arg("slots"))
      .def("attend", &Ops::attend, nb::kw_only(), nb::arg("arena"), nb::arg("layer"), nb::arg("q"),
           nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("block_tables"), nb::arg("num_heads"),
           nb::arg("scale"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f, nb::arg("sinks").none() = nb::none(),
           nb::arg("num_threads") = 1, nb::arg("share_prefixes") = true, nb::arg("out"));
}

}  // namespace octavo

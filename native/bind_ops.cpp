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

#include "arrays.h"
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
  explicit Scratch(size_t bytes) : bytes_(bytes), data_(map_memory(bytes)) {}
  ~Scratch() { unmap_memory(data_, bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

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
                                     int64_t cols) const {
    const TensorType type = tensor_type_from(type_name);
    auto packed = std::make_unique<PackedWeight>(*kernels_, type, form_from(form), rows, cols);
    require(raw.size() == tensor_bytes(type, rows, cols), "raw: the wrong number of bytes for this type and shape");
    packed->pack(raw.data(), type, 0, packed->weight().num_panels);
    return packed;
  }

  void unpack_row(const PackedWeight& packed, int64_t row, OutVector out) const {
    require(packed.weight().rows > row && row >= 0, "row: outside the weight");
    require(static_cast<int64_t>(out.shape(0)) == packed.weight().cols, "out: needs weight.cols entries");
    kernels_->unpack_row(packed.weight(), row, out.data());
  }

  // Panels are given in steps of `panels_per_call` and rows in steps of `rows_per_call` (0: all in one call), so that
  // a test can show that neither changes a bit.
  void linear(const PackedWeight& packed, Matrix x, std::optional<Vector> bias, OutMatrix out, int64_t rows_per_call,
              int64_t panels_per_call) const {
    const Weight& weight = packed.weight();
    const int64_t rows = static_cast<int64_t>(x.shape(0));
    require(&packed.kernels() == kernels_, "weight: packed for another instruction set");
    require(static_cast<int64_t>(x.shape(1)) == weight.cols, "x: needs weight.cols columns");
    require(static_cast<int64_t>(out.shape(0)) == rows && static_cast<int64_t>(out.shape(1)) >= weight.rows,
            "out: needs a row a row of x, and at least weight.rows columns");
    require(!bias || static_cast<int64_t>(bias->shape(0)) == weight.rows, "bias: needs weight.rows entries");
    const size_t stride = kernels_->activation_bytes(weight.form, weight.cols);
    Scratch rounded(stride * static_cast<size_t>(rows) + 64);
    for (int64_t r = 0; r < rows; ++r) {
      kernels_->round_activation(weight.form, x.data() + r * weight.cols, weight.cols,
                                 rounded.data() + static_cast<size_t>(r) * stride);
    }
    const int64_t row_step = rows_per_call > 0 ? rows_per_call : rows;
    const int64_t panel_step = panels_per_call > 0 ? panels_per_call : weight.num_panels;
    const int64_t out_stride = static_cast<int64_t>(out.shape(1));
    for (int64_t r = 0; r < rows; r += row_step) {
      const int64_t count = r + row_step < rows ? row_step : rows - r;
      for (int64_t p = 0; p < weight.num_panels; p += panel_step) {
        const int64_t end = p + panel_step < weight.num_panels ? p + panel_step : weight.num_panels;
        kernels_->linear(weight, rounded.data() + static_cast<size_t>(r) * stride, count, p, end,
                         out.data() + r * out_stride, out_stride, bias ? bias->data() : nullptr);
      }
    }
  }

  const Kernels& kernels() const { return *kernels_; }

 private:
  const Kernels* kernels_;
};

}  // namespace

void bind_ops(nb::module_& m) {
  nb::class_<Ops>(m, "Ops", "Single kernels of one instruction set.")
      .def(nb::init<const std::string&>(), nb::arg("isa") = "")
      .def_prop_ro("isa", &Ops::isa)
      .def("pack", &Ops::pack, nb::arg("raw"), nb::arg("tensor_type"), nb::arg("form"), nb::arg("rows"),
           nb::arg("cols"))
      .def("unpack_row", &Ops::unpack_row, nb::arg("weight"), nb::arg("row"), nb::arg("out"))
      .def("linear", &Ops::linear, nb::arg("weight"), nb::arg("x"), nb::arg("bias").none(), nb::arg("out"),
           nb::arg("rows_per_call") = 0, nb::arg("panels_per_call") = 0);
}

}  // namespace octavo

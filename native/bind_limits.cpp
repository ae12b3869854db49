// The limits of the processor, for one thread of a named instruction set: what `octavo bench kernels` compares with.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "arrays.h"
#include "bindings.h"
#include "dispatch.h"

namespace nb = nanobind;

namespace octavo {

namespace {

constexpr int64_t kMostRounds = int64_t{1} << 40;

Unit unit_from(const std::string& name) {
  if (name == "f32") return Unit::kFloats;
  if (name == "bf16") return Unit::kPairs;
  if (name == "int8") return Unit::kBytes;
  throw std::invalid_argument("unit: f32, bf16 or int8, not " + name);
}

// Runs without the interpreter lock, so that threads measure what they reach together.
class Limits {
 public:
  explicit Limits(const std::string& isa) : kernels_(&kernels_for(isa)) {}

  std::string isa() const { return kernels_->isa; }

  int64_t spin(const std::string& name, int64_t rounds) const {
    const Unit unit = unit_from(name);
    require(rounds >= 1 && rounds <= kMostRounds, "rounds: 1 to 2^40");
    const nb::gil_scoped_release release;
    return kernels_->spin(unit, rounds);
  }

 private:
  const Kernels* kernels_;
};

}  // namespace

void bind_limits(nb::module_& m) {
  nb::class_<Limits>(m, "Limits", "What one thread of an instruction set does at most.")
      .def(nb::init<const std::string&>(), nb::arg("isa") = "")
      .def_prop_ro("isa", &Limits::isa)
      .def("spin", &Limits::spin, nb::arg("unit"), nb::arg("rounds"));
}

}  // namespace octavo

// octavo._native: what Python sees. Arguments are checked here; below this file sizes are trusted.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "dispatch.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "The CPU kernels of octavo.";
  m.def("available_isas", &octavo::available_isas, "Instruction sets this process may run, best first.");
  octavo::bind_arena(m);
  octavo::bind_program(m);
  octavo::bind_step(m);
  octavo::bind_ops(m);
  octavo::bind_limits(m);
  octavo::bind_sample(m);
}

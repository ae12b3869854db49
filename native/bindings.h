// The parts of the module, each bound in its own bind_*.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_ops(nanobind::module_& m);  // single kernels on numpy arrays, for tests and benchmarks

}  // namespace octavo

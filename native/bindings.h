// The parts of the module, each bound in its own bind_*.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_arena(nanobind::module_& m);    // thread pool, packed weights, KV arena
void bind_program(nanobind::module_& m);  // programs, and how rows draw
void bind_step(nanobind::module_& m);     // persistent rows, and the runner of steps
void bind_ops(nanobind::module_& m);      // single kernels on numpy arrays, for tests and benchmarks
void bind_limits(nanobind::module_& m);   // the processor's limits, for benchmarks
void bind_sample(nanobind::module_& m);  // drawing tokens from logits, for tests

}  // namespace octavo

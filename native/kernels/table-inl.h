// Fills the table of kernels for one instruction set. Included once by each isa_*.cpp, which defines
//
//   OCTAVO_ISA_NS     the namespace everything lies in: avx512, avx2, neon, plain
//   OCTAVO_ISA_NAME   the same as a string
//   OCTAVO_ISA_<NAME> 1
//
// Every function here and in the included *-inl.h files lies in octavo::OCTAVO_ISA_NS and is `static` or `inline`, so
// that the linker can never choose an instance compiled for another processor. For the same reason nothing of std:: is
// instantiated: C's <string.h>, <stdint.h> and the compiler's builtins are enough.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

#if __has_include("kernels/pack-inl.h")
#include "kernels/pack-inl.h"  // panel_bytes, pack, unpack_row
#endif
#if __has_include("kernels/linear-inl.h")
#include "kernels/linear-inl.h"  // activation_bytes, round_activation, linear
#define OCTAVO_HAVE_LINEAR 1
#endif
#if __has_include("kernels/sample-inl.h")
#include "kernels/sample-inl.h"
#endif

namespace octavo {
namespace OCTAVO_ISA_NS {

static Kernels make_table() {
  Kernels table{};
  table.isa = OCTAVO_ISA_NAME;
#ifdef OCTAVO_HAVE_LINEAR
  table.panel_bytes = &panel_bytes;
  table.pack = &pack;
  table.unpack_row = &unpack_row;
  table.activation_bytes = &activation_bytes;
  table.round_activation = &round_activation;
  table.linear = &linear;
#endif
  return table;
}

const Kernels& kernels();
const Kernels& kernels() {
  static const Kernels table = make_table();
  return table;
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

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

#include "kernels/attention-inl.h"
#include "kernels/elementwise-inl.h"
#include "kernels/kv-inl.h"
#include "kernels/limits-inl.h"
#include "kernels/linear-inl.h"
#include "kernels/norm-inl.h"
#include "kernels/pack-inl.h"   // panel_bytes, pack, unpack_row
#include "kernels/round-inl.h"  // activation_bytes, round_activation
#include "kernels/sample-inl.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

static Kernels make_table() {
  Kernels table{};
  table.isa = OCTAVO_ISA_NAME;
  table.panel_bytes = &panel_bytes;
  table.pack = &pack;
  table.unpack_row = &unpack_row;
  table.activation_bytes = &activation_bytes;
  table.round_activation = &round_activation;
  table.linear = &linear;
  table.linear_gated = &linear_gated;
  table.rms_norm = &rms_norm;
  table.layer_norm = &layer_norm;
  table.rope = &rope;
  table.act_mul = &act_mul;
  table.activation = &activation;
  table.add = &add;
  table.mul = &mul;
  table.scale = &scale;
  table.softcap = &softcap;
  table.write_kv = &write_kv;
  table.attend_scratch_bytes = &attend_scratch_bytes;
  table.attend = &attend;
  table.attend_merge = &attend_merge;
  table.sample_scratch_bytes = &sample_scratch_bytes;
  table.sample = &sample;
  table.token_logprobs = &token_logprobs;
  table.spin = &spin;
  return table;
}

const Kernels& kernels();
const Kernels& kernels() {
  static const Kernels table = make_table();
  return table;
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

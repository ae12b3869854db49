// The table of kernels: one instance an instruction set, filled in by isa_*.cpp, chosen once by dispatch.
//
// Batch invariance: what a kernel computes for one row depends on that row and the weight only, never on how many rows
// or panels it is called with. Kernels allocate nothing and keep no state; threads split rows or panels between them.
#pragma once

#include "weight.h"

namespace octavo {

struct Kernels {
  const char* isa;  // "avx512", "avx2", "neon", "plain"

  // --- linear (kernels/linear*.h, kernels/pack*.h) ---

  // Bytes of one packed panel for a matrix of `cols` columns.
  size_t (*panel_bytes)(Form form, bool has_min, int64_t cols);

  // Packs panels [panel_begin, panel_end) of `out` (shape, form and data set) from the file's bytes `raw`.
  void (*pack)(const uint8_t* raw, TensorType type, const Weight& out, int64_t panel_begin, int64_t panel_end);

  // out[0 .. cols) = row `row` of the weight as float32 (an embedding look-up).
  void (*unpack_row)(const Weight& weight, int64_t row, float* out);

  // Bytes of one rounded activation row, a multiple of 64.
  size_t (*activation_bytes)(Form form, int64_t cols);

  // Rounds one row x[cols] to what `linear` reads: f32, bf16, or int8 in groups of 32 with a scale (and the group's
  // sum where the form needs it). `out` is 64-byte aligned.
  void (*round_activation)(Form form, const float* x, int64_t cols, void* out);

  // out[r * out_stride + c] = sum_k activation[r][k] * weight[c][k] + bias[c], for r in [0, num_rows) and the rows c of
  // panels [panel_begin, panel_end). `activations` holds num_rows rows of activation_bytes. bias may be null.
  // Never writes past column weight.rows.
  void (*linear)(const Weight& weight, const void* activations, int64_t num_rows, int64_t panel_begin,
                 int64_t panel_end, float* out, int64_t out_stride, const float* bias);

  // --- everything else is added here by its owner ---
};

}  // namespace octavo

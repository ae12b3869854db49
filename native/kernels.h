// The table of kernels: one instance an instruction set, filled in by isa_*.cpp, chosen once by dispatch.
//
// Batch invariance: what a kernel computes for one row depends on that row and the weight only, never on how many rows
// or panels it is called with. Kernels allocate nothing and keep no state; threads split rows or panels between them.
#pragma once

#include "attention.h"
#include "kernels/sample.h"
#include "weight.h"

namespace octavo {

// What multiplies: floats, pairs of bf16 into a float, or bytes into an integer.
enum class Unit : uint8_t { kFloats, kPairs, kBytes };

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

// Where a product goes, and what is done to it on the way.
struct LinearOut {
  float* out;
  int64_t stride;                  // floats from one row to the next
  const float* bias = nullptr;     // [weight.rows], or null
  const float* up_bias = nullptr;  // linear_gated: likewise
  const float* add = nullptr;      // linear: rows that are added, or null; may be `out`
  int64_t add_stride = 0;
};

struct Kernels {
  const char* isa;  // "avx512", "avx2", "neon", "plain"

  // --- linear (kernels/linear*.h, kernels/pack*.h) ---

  // Bytes of one packed panel for a matrix of `cols` columns.
  size_t (*panel_bytes)(Form form, bool has_min, int64_t cols);

  // Packs panels [panel_begin, panel_end) of `out` (shape, form and data set) from the file's bytes.
  void (*pack)(const FileTensor& from, const Weight& out, int64_t panel_begin, int64_t panel_end);

  // out[0 .. cols) = row `row` of the weight as float32 (an embedding look-up).
  void (*unpack_row)(const Weight& weight, int64_t row, float* out);

  // Bytes of one rounded activation row, a multiple of 64.
  size_t (*activation_bytes)(Form form, int64_t cols);

  // Rounds one row x[cols] to what `linear` reads: f32, bf16, int8 in groups of 32 with a scale (and the group's sum
  // where the form needs it), or int8 with one scale (w8a8). `out` is 64-byte aligned.
  void (*round_activation)(Form form, const float* x, int64_t cols, void* out);

  // to.out[r * to.stride + c] = sum_k activation[r][k] * weight[c][k] + bias[c] + add[r * add_stride + c], for r in
  // [0, num_rows) and the rows c of panels [panel_begin, panel_end). `activations` holds num_rows rows of
  // activation_bytes. Never writes past column weight.rows.
  void (*linear)(const Weight& weight, const void* activations, int64_t num_rows, int64_t panel_begin,
                 int64_t panel_end, const LinearOut& to);

  // to.out = activation(gate * x + bias) * (up * x + up_bias), for two weights of one shape and form.
  void (*linear_gated)(Activation kind, const Weight& gate, const Weight& up, const void* activations, int64_t num_rows,
                       int64_t panel_begin, int64_t panel_end, const LinearOut& to);

  // --- row by row (kernels/norm-inl.h, elementwise-inl.h): rows of `width` floats, `*_stride` floats apart ---

  // out = x / sqrt(mean(x^2) + eps) * weight, over groups of `group` columns.
  void (*rms_norm)(const float* x, int64_t x_stride, const float* weight, int64_t group, int64_t width, float eps,
                   int64_t rows, float* out, int64_t out_stride);
  void (*layer_norm)(const float* x, int64_t x_stride, const float* weight, const float* bias, int64_t width, float eps,
                     int64_t rows, float* out, int64_t out_stride);

  // Pairs (i, i + rotary_dim / 2) of each head are turned; cos, sin [rows, rotary_dim / 2].
  void (*rope)(const float* x, int64_t x_stride, const float* cos, const float* sin, int64_t num_heads, int64_t head_dim,
               int64_t rotary_dim, int64_t rows, float* out, int64_t out_stride);

  void (*act_mul)(Activation kind, const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                  int64_t width, int64_t rows, float* out, int64_t out_stride);
  void (*activation)(Activation kind, const float* x, int64_t x_stride, int64_t width, int64_t rows, float* out,
                     int64_t out_stride);
  void (*add)(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t width, int64_t rows,
              float* out, int64_t out_stride);
  void (*mul)(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t width, int64_t rows,
              float* out, int64_t out_stride);
  void (*scale)(const float* x, int64_t x_stride, float factor, int64_t width, int64_t rows, float* out,
                int64_t out_stride);
  void (*softcap)(const float* x, int64_t x_stride, float cap, int64_t width, int64_t rows, float* out,
                  int64_t out_stride);

  // --- the cache (kernels/kv-inl.h, attention-inl.h) ---

  // Stores k, v [rows, num_kv_heads * head_dim] at `slots` (block * block_size + offset); slot -1 is skipped. Two
  // threads may write different slots of one block at once.
  void (*write_kv)(const KVLayer& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                   const int64_t* slots, int64_t rows);

  // Bytes of scratch one thread needs for pieces of at most `rows` query rows (tokens x heads of a KV head).
  size_t (*attend_scratch_bytes)(int64_t rows, int64_t dim);
  // `next`: what this thread is given after it, to be fetched ahead; may be null.
  void (*attend)(const AttendArgs& args, const AttendPiece& piece, const AttendPiece* next, void* scratch);
  // Merges the parts of a piece that several threads computed, in order, and writes `out`. piece.partials holds all.
  void (*attend_merge)(const AttendArgs& args, const AttendPiece& piece, void* scratch);

  // --- sampling (kernels/sample*.h) ---

  // Bytes of scratch one thread needs, zero before its first use.
  size_t (*sample_scratch_bytes)(int64_t vocab_size);

  // Draws row.num_samples tokens and their log-probabilities. `scratch` is 64-byte aligned.
  SampleStatus (*sample)(const SampleRow& row, int64_t vocab_size, void* scratch, const SampleOut& out);

  // Log-probabilities of ids [num_ids] and the num_top best, from the model's own logits [vocab_size].
  SampleStatus (*token_logprobs)(const float* logits, int64_t vocab_size, const int32_t* ids, int64_t num_ids,
                                 float* logprobs, int64_t num_top, int32_t* top_ids, float* top_logprobs);

  // --- the processor's limits (kernels/limits-inl.h) ---

  // Multiplies and adds in registers alone, as fast as it goes; returns the operations done, two a product.
  int64_t (*spin)(Unit unit, int64_t rounds);
};

}  // namespace octavo

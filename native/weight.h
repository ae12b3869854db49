// A weight matrix as the kernels read it: packed once at load, immutable afterwards.
//
// Logical shape [rows, cols] = [out_width, in_width]. Rows lie in panels of 16; within a panel the memory is a straight
// read in the order the inner loop of `linear` wants it. The layout inside a panel belongs to kernels/pack*.h and may
// differ between instruction sets: a packed weight is only good for the kernels that packed it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int64_t kPanelRows = 16;

enum class Form : uint8_t { kF32, kBF16, kInt8, kInt4, kW8A8 };

// How the bytes of a tensor lie in its file. kI8: int8 whose scales, one a row, are a tensor of their own.
enum class TensorType : uint8_t { kF32, kF16, kBF16, kI8, kQ8_0, kQ4_0, kQ4_1, kQ6_K };

struct FileTensor {
  const uint8_t* bytes;
  TensorType type;
  const float* row_scales;  // kI8: [rows]; else null
};

// Columns a w8a8 weight may have: the sum of w * x is at most 128 * (127 * 2^16 + spikes) and fits 32 bits, and so does
// that of the offset weights, 255 * (127 * 2^16 + spikes); spikes: 4 of at most 127 * 128 (kernels/pack.h).
constexpr int64_t kMaxW8A8Cols = 65536;

struct Weight {
  Form form;
  bool has_min;             // int4: value = scale * q + min, else scale * q
  int64_t rows;
  int64_t cols;
  int64_t num_panels;       // ceil(rows / 16); the last panel's missing rows are zero
  size_t panel_bytes;
  uint8_t* data;            // num_panels * panel_bytes, 64-byte aligned, owned by whoever allocated it
};

}  // namespace octavo

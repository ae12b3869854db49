// panel_bytes, pack, unpack_row: from a file's bytes to the panels of kernels/pack.h and back. int8 and int4 keep their
// file's integers and f16 scales, w8a8 those of an I8 tensor; floats round to nearest even. Requantised, from its values
// as float32, is only a w8a8 made of another type, one scale a row, and an int8 made of Q6_K, one scale a group. Plain
// C++: a model is packed once, by all threads.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/pack.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

static inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static inline float float_of_bf16(uint16_t value) { return float_of_bits(static_cast<uint32_t>(value) << 16); }

// To nearest even; NaN stays NaN.
static inline uint16_t bf16_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact, subnormals included: 2^-24 times the integer of their bits, everything else by moving the exponent.
static inline float float_of_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(rest)) * 5.9604644775390625e-8f;
  const uint32_t moved = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u);
  return float_of_bits(sign | (rest < 0x400u ? bits_of_float(subnormal) : moved));
}

// To nearest even, of x >= 0. What is beyond the largest half becomes infinity, NaN stays NaN.
static inline uint16_t f16_of_float(float x) {
  const uint32_t bits = bits_of_float(x);
  if (bits > 0x7f800000u) return 0x7e00u;
  if (bits >= 0x477ff000u) return 0x7c00u;
  // Below the smallest normal half a sum with 1/2 leaves multiples of 2^-24, which count the subnormals.
  if (bits < 0x38800000u) return static_cast<uint16_t>(bits_of_float(x + 0.5f) - 0x3f000000u);
  return static_cast<uint16_t>((bits + 0xfffu + ((bits >> 13) & 1u) - 0x38000000u) >> 13);
}

static inline uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, 2);
  return value;
}

static inline float read_f16(const uint8_t* p) { return float_of_f16(read_u16(p)); }

static inline float read_f32(const uint8_t* p) {
  float value;
  memcpy(&value, p, 4);
  return value;
}

// The largest |x| as bits: above 0x7f7fffff where something is not finite.
static inline int32_t max_abs_bits(const float* x, int64_t count) {
  int32_t top = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = static_cast<int32_t>(bits_of_float(x[i]) & 0x7fffffffu);
    top = bits > top ? bits : top;
  }
  return top;
}

// How floats of at most |top| become int8 in [-127, 127]: q = x * inverse to nearest even, x is about q * scale. All
// zero where the quotient has no finite reciprocal.
struct Int8Scale {
  float scale, inverse;
};

static inline Int8Scale int8_scale(float top) {
  const float inverse = 127.0f / top;
  if (!(inverse <= 3.4028235e38f)) return {0.0f, 0.0f};
  return {top / 127.0f, inverse};
}

// Through the float whose unit is 1.
static inline int32_t round_to_int8(float x, float inverse) {
  return static_cast<int32_t>(bits_of_float(x * inverse + 12582912.0f)) - 0x4b400000;
}

static size_t panel_bytes(Form form, bool has_min, int64_t cols) {
  int64_t bytes = 0;
  switch (form) {
    case Form::kF32: bytes = cols * kPanelRows * 4; break;
    case Form::kBF16: bytes = (cols + 1) / 2 * kPanelRows * 4; break;
    case Form::kInt8: bytes = cols / kGroup * kInt8GroupBytes; break;
    case Form::kInt4: bytes = cols / kGroup * (has_min ? kInt4MinGroupBytes : kInt4GroupBytes); break;
    case Form::kW8A8: bytes = padded_cols(cols) / kGroup * kW8A8GroupBytes + kW8A8ScaleBytes; break;
  }
  return static_cast<size_t>(bytes);
}

// Element k of a row of floats of the file.
template <TensorType kType>
static inline float file_float(const uint8_t* row, int64_t k) {
  if (kType == TensorType::kF32) return read_f32(row + 4 * k);
  if (kType == TensorType::kF16) return read_f16(row + 2 * k);
  return float_of_bf16(read_u16(row + 2 * k));
}

template <TensorType kType>
static void pack_float_panel(const uint8_t* raw, const Weight& out, int64_t panel) {
  const int64_t file_row = out.cols * (kType == TensorType::kF32 ? 4 : 2);
  const int64_t first = panel * kPanelRows;
  const int64_t present = out.rows - first < kPanelRows ? out.rows - first : kPanelRows;
  uint8_t* base = out.data + static_cast<size_t>(panel) * out.panel_bytes;
  memset(base, 0, out.panel_bytes);
  for (int64_t lane = 0; lane < present; ++lane) {
    const uint8_t* row = raw + (first + lane) * file_row;
    if (out.form == Form::kF32) {
      for (int64_t k = 0; k < out.cols; ++k) {
        const float value = file_float<kType>(row, k);
        memcpy(base + (k * kPanelRows + lane) * 4, &value, 4);
      }
    } else {
      for (int64_t k = 0; k < out.cols; ++k) {
        const uint16_t value =
            kType == TensorType::kBF16 ? read_u16(row + 2 * k) : bf16_of_float(file_float<kType>(row, k));
        memcpy(base + ((k / 2 * kPanelRows + lane) * 2 + k % 2) * 2, &value, 2);
      }
    }
  }
}

static void pack_int8_panel(const uint8_t* raw, const Weight& out, int64_t panel) {
  constexpr int64_t kBlock = 34;  // Q8_0: f16 scale, int8[32]
  const int64_t groups = out.cols / kGroup;
  const int64_t first = panel * kPanelRows;
  const int64_t present = out.rows - first < kPanelRows ? out.rows - first : kPanelRows;
  uint8_t* base = out.data + static_cast<size_t>(panel) * out.panel_bytes;
  memset(base, 0, out.panel_bytes);
  for (int64_t lane = 0; lane < present; ++lane) {
    const uint8_t* block = raw + (first + lane) * groups * kBlock;
    uint8_t* group = base;
    for (int64_t g = 0; g < groups; ++g, block += kBlock, group += kInt8GroupBytes) {
      memcpy(group + kInt8ScaleAt + 2 * lane, block, 2);
      for (int64_t step = 0; step < 8; ++step) {
        uint32_t four;
        memcpy(&four, block + 2 + 4 * step, 4);
        four ^= 0x80808080u;
        memcpy(group + 64 * step + 4 * lane, &four, 4);
      }
    }
  }
}

static void pack_int4_panel(const uint8_t* raw, const Weight& out, int64_t panel) {
  const int64_t header = out.has_min ? 4 : 2;  // Q4_0: f16 scale; Q4_1: f16 scale, f16 minimum; then 16 bytes:
  const int64_t block_bytes = header + 16;     // low nibbles values 0..15, high nibbles 16..31
  const int64_t group_bytes = out.has_min ? kInt4MinGroupBytes : kInt4GroupBytes;
  const int64_t groups = out.cols / kGroup;
  const int64_t first = panel * kPanelRows;
  const int64_t present = out.rows - first < kPanelRows ? out.rows - first : kPanelRows;
  uint8_t* base = out.data + static_cast<size_t>(panel) * out.panel_bytes;
  memset(base, 0, out.panel_bytes);
  for (int64_t lane = 0; lane < present; ++lane) {
    const uint8_t* block = raw + (first + lane) * groups * block_bytes;
    uint8_t* group = base;
    for (int64_t g = 0; g < groups; ++g, block += block_bytes, group += group_bytes) {
      memcpy(group + kInt4ScaleAt + 2 * lane, block, 2);
      if (out.has_min) memcpy(group + kInt4MinAt + 2 * lane, block + 2, 2);
      for (int64_t step = 0; step < 4; ++step) memcpy(group + 64 * step + 4 * lane, block + header + 4 * step, 4);
    }
  }
}

// Values k .. k + count of a row of the file, at most 32 and of one block, as float32.
template <TensorType kType>
static inline void file_floats(const uint8_t* row, int64_t k, int64_t count, float* out) {
  if constexpr (kType == TensorType::kQ8_0) {
    const uint8_t* block = row + k / kGroup * 34;
    const float scale = read_f16(block);
    for (int64_t i = 0; i < count; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  } else if constexpr (kType == TensorType::kQ4_0 || kType == TensorType::kQ4_1) {
    constexpr bool kMin = kType == TensorType::kQ4_1;
    constexpr int64_t kHeader = kMin ? 4 : 2;
    const uint8_t* block = row + k / kGroup * (kHeader + 16);
    const float scale = read_f16(block);
    const float minimum = kMin ? read_f16(block + 2) : 0.0f;
    for (int64_t i = 0; i < 16; ++i) {
      const int both = block[kHeader + i];
      const float low = static_cast<float>((both & 15) - (kMin ? 0 : 8));
      const float high = static_cast<float>((both >> 4) - (kMin ? 0 : 8));
      out[i] = kMin ? scale * low + minimum : scale * low;
      out[16 + i] = kMin ? scale * high + minimum : scale * high;
    }
  } else if constexpr (kType == TensorType::kQ6_K) {
    // 256 values: 128 bytes of low nibbles, 64 of upper pairs of bits, 16 int8 scales, f16 scale. A half of 128 values
    // is four groups of 32: two in low nibbles, two in high ones, a pair of bits of one byte for each.
    const uint8_t* block = row + k / 256 * 210;
    const int64_t half = k % 256 / 128, group = k % 128 / 32;
    const uint8_t* low = block + 64 * half + 32 * (group & 1);
    const uint8_t* high = block + 128 + 32 * half;
    const uint8_t* scales = block + 192 + 8 * half + 2 * group;
    const float scale = read_f16(block + 208);
    for (int64_t i = 0; i < count; ++i) {
      const int nibble = group < 2 ? low[i] & 15 : low[i] >> 4;
      const int q = (nibble | ((high[i] >> (2 * group)) & 3) << 4) - 32;
      out[i] = scale * static_cast<float>(static_cast<int8_t>(scales[i / 16])) * static_cast<float>(q);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = file_float<kType>(row, k + i);
  }
}

// A group of 32 to int8 with the f16 scale nearest to max / 127, which all of them are divided by.
static void pack_q6_panel(const uint8_t* raw, const Weight& out, int64_t panel) {
  const int64_t file_row = out.cols / 256 * 210;
  const int64_t first = panel * kPanelRows;
  const int64_t present = out.rows - first < kPanelRows ? out.rows - first : kPanelRows;
  uint8_t* base = out.data + static_cast<size_t>(panel) * out.panel_bytes;
  memset(base, 0, out.panel_bytes);
  for (int64_t lane = 0; lane < present; ++lane) {
    const uint8_t* row = raw + (first + lane) * file_row;
    uint8_t* group = base;
    for (int64_t k = 0; k < out.cols; k += kGroup, group += kInt8GroupBytes) {
      float values[kGroup];
      file_floats<TensorType::kQ6_K>(row, k, kGroup, values);
      const float top = float_of_bits(static_cast<uint32_t>(max_abs_bits(values, kGroup)));
      const uint16_t scale = f16_of_float(top / 127.0f);
      const float step = float_of_f16(scale);
      // A scale of so few bits may be too small by a part: what does not fit 127 steps then stops there.
      const bool is_regular = step > 0.0f && scale < 0x7c00u;
      for (int64_t i = 0; i < kGroup; ++i) {
        float q = is_regular ? values[i] / step : 0.0f;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        group[64 * (i / 4) + 4 * lane + i % 4] = static_cast<uint8_t>(round_to_int8(q, 1.0f) + 128);
      }
      memcpy(group + kInt8ScaleAt + 2 * lane, &scale, 2);
    }
  }
}

// 32 int8 of a lane, into a group of its panel.
static inline void put_w8a8(const uint8_t* q, int64_t lane, uint8_t* group) {
  for (int64_t step = 0; step < 8; ++step) {
    uint32_t four;
    memcpy(&four, q + 4 * step, 4);
    four ^= 0x80808080u;
    memcpy(group + 64 * step + 4 * lane, &four, 4);
  }
}

// A row of the file, rounded; returns its scale, NaN where a value is not finite, so that none hides.
template <TensorType kType>
static inline float quantise_row(const uint8_t* row, int64_t cols, int64_t lane, uint8_t* group) {
  float values[kGroup];
  int32_t top = 0;
  for (int64_t k = 0; k < cols; k += kGroup) {
    const int64_t count = cols - k < kGroup ? cols - k : kGroup;
    file_floats<kType>(row, k, count, values);
    const int32_t bits = max_abs_bits(values, count);
    top = bits > top ? bits : top;
  }
  if (top > 0x7f7fffff) return float_of_bits(0x7fc00000u);
  const Int8Scale to = int8_scale(float_of_bits(static_cast<uint32_t>(top)));
  for (int64_t k = 0; k < cols; k += kGroup, group += kW8A8GroupBytes) {
    const int64_t count = cols - k < kGroup ? cols - k : kGroup;
    uint8_t q[kGroup] = {};
    file_floats<kType>(row, k, count, values);
    for (int64_t i = 0; i < count; ++i) q[i] = static_cast<uint8_t>(round_to_int8(values[i], to.inverse));
    put_w8a8(q, lane, group);
  }
  return to.scale;
}

static inline int64_t row_bytes(TensorType type, int64_t cols) {
  switch (type) {
    case TensorType::kF32: return cols * 4;
    case TensorType::kF16:
    case TensorType::kBF16: return cols * 2;
    case TensorType::kI8: return cols;
    case TensorType::kQ8_0: return cols / kGroup * 34;
    case TensorType::kQ4_0: return cols / kGroup * 18;
    case TensorType::kQ4_1: return cols / kGroup * 20;
    case TensorType::kQ6_K: return cols / 256 * 210;
  }
  return 0;
}

template <TensorType kType>
static void pack_w8a8_panel(const FileTensor& from, const Weight& out, int64_t panel) {
  const int64_t file_row = row_bytes(kType, out.cols);
  const int64_t groups = padded_cols(out.cols) / kGroup;
  const int64_t first = panel * kPanelRows;
  uint8_t* base = out.data + static_cast<size_t>(panel) * out.panel_bytes;
  memset(base, 128, static_cast<size_t>(groups * kW8A8GroupBytes));
  float scales[kPanelRows] = {};
  for (int64_t lane = 0; lane < kPanelRows && first + lane < out.rows; ++lane) {
    const uint8_t* row = from.bytes + (first + lane) * file_row;
    if constexpr (kType == TensorType::kI8) {
      scales[lane] = from.row_scales[first + lane];
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t count = out.cols - g * kGroup < kGroup ? out.cols - g * kGroup : kGroup;
        uint8_t q[kGroup] = {};
        memcpy(q, row + g * kGroup, static_cast<size_t>(count));
        put_w8a8(q, lane, base + g * kW8A8GroupBytes);
      }
    } else {
      scales[lane] = quantise_row<kType>(row, out.cols, lane, base);
    }
  }
  memcpy(base + groups * kW8A8GroupBytes, scales, sizeof(scales));
}

static void pack_w8a8(const FileTensor& from, const Weight& out, int64_t panel) {
  switch (from.type) {
    case TensorType::kF32: pack_w8a8_panel<TensorType::kF32>(from, out, panel); break;
    case TensorType::kF16: pack_w8a8_panel<TensorType::kF16>(from, out, panel); break;
    case TensorType::kBF16: pack_w8a8_panel<TensorType::kBF16>(from, out, panel); break;
    case TensorType::kI8: pack_w8a8_panel<TensorType::kI8>(from, out, panel); break;
    case TensorType::kQ8_0: pack_w8a8_panel<TensorType::kQ8_0>(from, out, panel); break;
    case TensorType::kQ4_0: pack_w8a8_panel<TensorType::kQ4_0>(from, out, panel); break;
    case TensorType::kQ4_1: pack_w8a8_panel<TensorType::kQ4_1>(from, out, panel); break;
    case TensorType::kQ6_K: pack_w8a8_panel<TensorType::kQ6_K>(from, out, panel); break;
  }
}

static void pack(const FileTensor& from, const Weight& out, int64_t panel_begin, int64_t panel_end) {
  const uint8_t* raw = from.bytes;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    if (out.form == Form::kW8A8) {
      pack_w8a8(from, out, panel);
      continue;
    }
    switch (from.type) {
      case TensorType::kI8: break;  // w8a8 only
      case TensorType::kF32: pack_float_panel<TensorType::kF32>(raw, out, panel); break;
      case TensorType::kF16: pack_float_panel<TensorType::kF16>(raw, out, panel); break;
      case TensorType::kBF16: pack_float_panel<TensorType::kBF16>(raw, out, panel); break;
      case TensorType::kQ8_0: pack_int8_panel(raw, out, panel); break;
      case TensorType::kQ4_0:
      case TensorType::kQ4_1: pack_int4_panel(raw, out, panel); break;
      case TensorType::kQ6_K: pack_q6_panel(raw, out, panel); break;
    }
  }
}

static void unpack_int4(const Weight& weight, const uint8_t* group, int64_t lane, float* out) {
  const int64_t group_bytes = weight.has_min ? kInt4MinGroupBytes : kInt4GroupBytes;
  for (int64_t k = 0; k < weight.cols; k += kGroup, group += group_bytes, out += kGroup) {
    const float scale = read_f16(group + kInt4ScaleAt + 2 * lane);
    const float minimum = weight.has_min ? read_f16(group + kInt4MinAt + 2 * lane) : 0.0f;
    const int zero = weight.has_min ? 0 : 8;
    for (int64_t i = 0; i < 16; ++i) {
      const int both = group[64 * (i / 4) + 4 * lane + i % 4];
      out[i] = scale * static_cast<float>((both & 15) - zero) + minimum;
      out[16 + i] = scale * static_cast<float>((both >> 4) - zero) + minimum;
    }
  }
}

static void unpack_row(const Weight& weight, int64_t row, float* out) {
  const uint8_t* panel = weight.data + static_cast<size_t>(row / kPanelRows) * weight.panel_bytes;
  const int64_t lane = row % kPanelRows;
  switch (weight.form) {
    case Form::kF32:
      for (int64_t k = 0; k < weight.cols; ++k) out[k] = read_f32(panel + (k * kPanelRows + lane) * 4);
      break;
    case Form::kBF16:
      for (int64_t k = 0; k < weight.cols; ++k) {
        out[k] = float_of_bf16(read_u16(panel + ((k / 2 * kPanelRows + lane) * 2 + k % 2) * 2));
      }
      break;
    case Form::kInt8:
      for (int64_t k = 0; k < weight.cols; k += kGroup, panel += kInt8GroupBytes) {
        const float scale = read_f16(panel + kInt8ScaleAt + 2 * lane);
        for (int64_t i = 0; i < kGroup; ++i) {
          out[k + i] = scale * static_cast<float>(static_cast<int>(panel[64 * (i / 4) + 4 * lane + i % 4]) - 128);
        }
      }
      break;
    case Form::kInt4: unpack_int4(weight, panel, lane, out); break;
    case Form::kW8A8: {
      const float scale = read_f32(panel + padded_cols(weight.cols) / kGroup * kW8A8GroupBytes + 4 * lane);
      for (int64_t k = 0; k < weight.cols; ++k) {
        const int q = panel[w8a8_step_at(k) + 4 * lane + k % 4];
        out[k] = scale * static_cast<float>(q - 128);
      }
      break;
    }
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

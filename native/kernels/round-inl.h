// activation_bytes, round_activation: from rows of floats to what the tiles of `linear` read (kernels/pack.h). The same
// bits on every instruction set, but for bf16's layout; one value that is not finite makes a whole row NaN, of all forms.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/pack-inl.h"
#include "kernels/pack.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

static size_t activation_bytes(Form form, int64_t cols) {
  int64_t bytes = 0;
  switch (form) {
    case Form::kF32: bytes = cols * 4; break;
    case Form::kBF16: bytes = (cols + 1) / 2 * (kPairsOfBF16 ? 4 : 8); break;
    case Form::kInt8: bytes = cols / kGroup * kInt8ActGroupBytes; break;
    case Form::kInt4: bytes = cols / kGroup * kInt4ActGroupBytes; break;
    case Form::kW8A8: bytes = padded_cols(cols) + kW8A8ActTailBytes; break;
  }
  // An odd number of cache lines: a tile's rows, read side by side, must not all fall into the same set of the cache.
  return static_cast<size_t>(((bytes + 63) / 64 | 1) * 64);
}

// x * inverse to the nearest integer, as the float whose unit is 1: the integer's low bits are the float's own.
constexpr float kUnit = 12582912.0f;
OCTAVO_SIMD F32 round_to_unit(F32 x, F32 inverse) { return x * inverse + set1(kUnit); }

// One group by its largest |x|. `broken` makes the scale NaN, and so every output of the row. Returns the sum, which is
// exact: 32 integers of at most 127.
OCTAVO_SIMD int32_t round_group(const float* x, bool broken, uint8_t* out) {
  const F32 first = load(x), second = load(x + 16);
  const Int8Scale to = broken ? Int8Scale{float_of_bits(0x7fc00000u), 0.0f}
                              : int8_scale(max_lane(max(abs(first), abs(second))));
  const F32 inverse = set1(to.inverse), none = zero();
  const F32 low = round_to_unit(broken ? none : first, inverse), high = round_to_unit(broken ? none : second, inverse);
  store_low_bytes(out, low);
  store_low_bytes(out + 16, high);
  memcpy(out + kActScaleAt, &to.scale, 4);
  return static_cast<int32_t>(sum((low - set1(kUnit)) + (high - set1(kUnit))));
}

// The largest |x| in each of 16 interleaved parts of a row.
struct Tops {
  F32 lanes;
  bool broken;  // something is not finite
};

OCTAVO_SIMD Tops tops_of(const float* x, int64_t cols) {
  F32 tops[2] = {zero(), zero()}, nothing[2] = {zero(), zero()};  // 0 times something not finite is NaN, and stays
  int64_t k = 0;
  for (; k + 32 <= cols; k += 32) {
    for (int j = 0; j < 2; ++j) {
      const F32 values = load(x + k + 16 * j);
      tops[j] = max(tops[j], abs(values));
      nothing[j] = fma(values, zero(), nothing[j]);
    }
  }
  for (; k < cols; k += 16) {
    const F32 values = load_padded(x, k, cols);
    tops[0] = max(tops[0], abs(values));
    nothing[0] = fma(values, zero(), nothing[0]);
  }
  return {max(tops[0], tops[1]), !(sum(nothing[0] + nothing[1]) == 0.0f)};
}

// Sixteen values by rank: how many stand before each, equal ones in order. Compares all with all, and branches nowhere:
// where the large values of a row lie cannot be foreseen.
struct Ranks {
  int32_t of[16] = {};
};

static inline Ranks ranks_of(const float* values) {
  Ranks ranks;
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 16; ++i) ranks.of[i] += (values[j] > values[i]) | ((values[j] == values[i]) & (j < i));
  }
  return ranks;
}

// The largest |x| of a row, in falling order, and where each lies; zeros where there are no more.
struct Largest {
  static constexpr int kCount = kSpikes + 1;
  float values[16] = {};
  int32_t at[16] = {};

  inline void put(float value, int32_t place) {
    if (value <= values[kCount - 1]) return;
    int i = kCount - 1;
    for (; i > 0 && values[i - 1] < value; --i) values[i] = values[i - 1], at[i] = at[i - 1];
    values[i] = value;
    at[i] = place;
  }
};

// At least kCount of a row's 16 parts reach the bound, so the largest lie in what reaches it: a few registers of 16.
static inline Largest largest_of(const float* x, int64_t cols, F32 tops) {
  float lanes[16];
  store(lanes, tops);
  Largest parts, largest;
  const Ranks order = ranks_of(lanes);
  for (int i = 0; i < 16; ++i) parts.values[order.of[i]] = lanes[i];
  const F32 bound = set1(parts.values[Largest::kCount - 1]);
  int32_t places[17];
  uint32_t masks[17];
  int count = 0, num_values = 0;
  for (int64_t k = 0; k < cols; k += 16) {
    const uint32_t found = ~lanes_of(less(abs(load_padded(x, k, cols)), bound)) & 0xffffu;
    places[count] = static_cast<int32_t>(k);
    masks[count] = found;
    count += found != 0 && count < 16;
    num_values += __builtin_popcount(found);
  }
  if (num_values > 16) {  // many equal ones, or hardly any that are not zero
    for (int64_t k = 0; k < cols; ++k) largest.put(x[k] < 0.0f ? -x[k] : x[k], static_cast<int32_t>(k));
    return largest;
  }
  float values[16] = {};
  int32_t at[16] = {};
  int filled = 0;
  for (int c = 0; c < count; ++c) {
    for (uint32_t mask = masks[c]; mask != 0; mask &= mask - 1, ++filled) {
      at[filled] = places[c] + __builtin_ctz(mask);
      values[filled] = at[filled] < cols ? __builtin_fabsf(x[at[filled]]) : 0.0f;
    }
  }
  const Ranks ranks = ranks_of(values);
  for (int i = 0; i < 16; ++i) largest.values[ranks.of[i]] = values[i], largest.at[ranks.of[i]] = at[i];
  return largest;
}

// The scale that makes the fifth largest 127, unless the largest would pass kMaxSpike then.
static inline Int8Scale spiked_scale(const Largest& largest) {
  const float top = largest.values[0], rest = largest.values[kSpikes];
  if (rest / 127.0f >= top / kMaxSpike) return int8_scale(rest);
  const float inverse = kMaxSpike / top;
  if (!(inverse <= 3.4028235e38f)) return {0.0f, 0.0f};
  return {top / kMaxSpike, inverse};
}

// A whole row of w8a8. Its sum is exact in floats: at most 127 * 65,536 and the spikes.
static inline void round_row(const float* x, int64_t cols, uint8_t* out) {
  const int64_t padded = padded_cols(cols);
  uint8_t* tail = out + padded;
  const Tops tops = tops_of(x, cols);
  memset(tail, 0, kW8A8ActTailBytes);
  if (tops.broken) {
    memset(out, 0, static_cast<size_t>(padded));
    memset(tail, 0xff, 4);  // a NaN
    return;
  }
  const Largest largest = largest_of(x, cols, tops.lanes);
  const Int8Scale to = spiked_scale(largest);
  const F32 inverse = set1(to.inverse), unit = set1(kUnit);
  F32 sums = zero();
  int64_t k = 0;
  for (; k < cols; k += 16) {
    const F32 rounded = round_to_unit(load_padded(x, k, cols), inverse);
    store_low_bytes(out + k, rounded);
    sums = sums + (rounded - unit);
  }
  if (k < padded) memset(out + k, 0, static_cast<size_t>(padded - k));
  for (int i = 0; i < kSpikes && largest.values[i] > largest.values[kSpikes]; ++i) {
    const int64_t at = largest.at[i];
    const int32_t q = round_to_int8(x[at], to.inverse);
    const int32_t high = (q + (1 << (kSpikeShift - 1))) >> kSpikeShift;
    out[at] = static_cast<uint8_t>(q - high * (1 << kSpikeShift));
    uint8_t* spike = tail + kW8A8ActSpikesAt + i * kSpikeBytes;
    const int32_t step = static_cast<int32_t>(w8a8_step_at(at));
    memcpy(spike, &step, 4);
    spike[4 + at % 4] = static_cast<uint8_t>(high);
  }
  const int32_t start = -128 * static_cast<int32_t>(sum(sums));
  memcpy(tail, &to.scale, 4);
  memcpy(tail + kW8A8ActStartAt, &start, 4);
}

static void round_activation(Form form, const float* x, int64_t cols, void* out) {
  uint8_t* to = static_cast<uint8_t*>(out);
  if (form == Form::kW8A8) return round_row(x, cols, to);
  const bool broken = tops_of(x, cols).broken;
  switch (form) {
    case Form::kF32:
      memcpy(to, x, static_cast<size_t>(cols) * 4);
      if (broken) memset(to, 0xff, 4);  // a NaN: an infinity alone would leave finite rows of zeros beside it
      break;
    case Form::kBF16: {
      if (kPairsOfBF16) {
        uint16_t* values = static_cast<uint16_t*>(out);
        for (int64_t k = 0; k < cols; ++k) values[k] = bf16_of_float(x[k]);
        if (cols % 2 != 0) values[cols] = 0;
      } else {
        float* values = static_cast<float*>(out);
        for (int64_t k = 0; k < cols; ++k) values[k] = float_of_bf16(bf16_of_float(x[k]));
        if (cols % 2 != 0) values[cols] = 0.0f;
      }
      if (broken) memset(to, 0xff, 4);
      break;
    }
    case Form::kInt8:
      for (int64_t k = 0; k < cols; k += kGroup, to += kInt8ActGroupBytes) {
        const int32_t start = -128 * round_group(x + k, broken, to);
        memcpy(to + kActStartAt, &start, 4);
      }
      break;
    case Form::kInt4:
      for (int64_t k = 0; k < cols; k += kGroup, to += kInt4ActGroupBytes) {
        const int32_t sum = round_group(x + k, broken, to);
        const int32_t start = -8 * sum;
        const float scaled = read_f32(to + kActScaleAt) * static_cast<float>(sum);
        memcpy(to + kActStartAt, &start, 4);
        memcpy(to + kActSumAt, &scaled, 4);
      }
      break;
    case Form::kW8A8: break;  // above
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

// What "best" means among logits: greater first, lower id first among equals; -0 counts as +0. The greatest, the few
// greatest, and the rows nothing can be drawn from.
#pragma once

#include <stdint.h>

#include "kernels/pack-inl.h"
#include "kernels/sample.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kScanBlock = 256;  // tokens a vectorised pass handles before a scalar one looks at them

// A float's order as an integer's; -0 counts as +0. Infinities are 0x7f800000 and kLowestKey, NaNs lie beyond both.
constexpr int32_t kLowestKey = static_cast<int32_t>(0x807fffffu);

static inline int32_t order_key(float value) {
  const int32_t bits = static_cast<int32_t>(bits_of_float(value + 0.0f));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

static inline float value_of_key(int32_t key) {
  return float_of_bits(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

// The greatest value, or why nothing can be drawn.
static inline SampleStatus check_logits(const float* values, int64_t count, float* top) {
  int32_t high = INT32_MIN;
  int32_t low = INT32_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = order_key(values[i]);
    high = key > high ? key : high;
    low = key < low ? key : low;
  }
  *top = value_of_key(high);
  if (high > 0x7f800000 || low < kLowestKey) return SampleStatus::kNaN;
  if (high == 0x7f800000) return SampleStatus::kInfinity;
  if (high == kLowestKey) return SampleStatus::kNothingLeft;
  return SampleStatus::kOk;
}

static inline int32_t first_equal(const float* values, int64_t count, float wanted) {
  for (int64_t begin = 0; begin < count; begin += kScanBlock) {
    const int64_t end = begin + kScanBlock < count ? begin + kScanBlock : count;
    int32_t hit = 0;
    for (int64_t i = begin; i < end; ++i) hit |= values[i] == wanted;
    if (hit == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (values[i] == wanted) return static_cast<int32_t>(i);
    }
  }
  return 0;
}

// The best `wanted` ids, best first: a sorted list that a token enters only by beating its last one.
static inline void best_ids(const float* logits, int64_t count, int64_t wanted, int32_t* ids) {
  int64_t have = 0;
  for (int64_t begin = 0; begin < count && wanted > 0; begin += kScanBlock) {
    const int64_t end = begin + kScanBlock < count ? begin + kScanBlock : count;
    if (have == wanted) {
      const float bar = logits[ids[have - 1]];
      int32_t hit = 0;
      for (int64_t i = begin; i < end; ++i) hit |= logits[i] > bar;
      if (hit == 0) continue;
    }
    for (int64_t i = begin; i < end; ++i) {
      if (have == wanted && !(logits[i] > logits[ids[have - 1]])) continue;
      int64_t place = have < wanted ? have++ : have - 1;
      for (; place > 0 && logits[ids[place - 1]] < logits[i]; --place) ids[place] = ids[place - 1];
      ids[place] = static_cast<int32_t>(i);
    }
  }
  for (int64_t i = have; i < wanted; ++i) ids[i] = -1;
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

// Drawing by place in the order of best first. Every filter keeps a prefix of that order, and a draw is the place in it
// where the running sum of weights passes a number.
//
// So nothing is sorted but the few tokens around such a place: the histogram says in which bucket it lies, a finer one
// over that bucket's own range in which part of it, until few are left.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/sample-weigh-inl.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kSortable = 32;  // so few are sorted by insertion

// What is summed up along the order, and the histogram of it over the coarse buckets.
struct Measure {
  const Histogram* coarse;
  bool counts;  // tokens; else what they weigh
};

// The end of a prefix: its last token, and how much it comes to.
struct Prefix {
  float value;
  int32_t id;
  double amount;
};

// Where a prefix ends: the first token at which at least, or more than, `amount` is reached.
struct Goal {
  double amount;
  bool above;

  bool is_reached(double have) const { return above ? have > amount : have >= amount; }
};

static inline void amounts_of(const Distribution& d, const Measure& by, const float* values, int64_t count,
                              float* amounts) {
  if (!by.counts) return weights_of(d, values, count, amounts);
  for (int64_t i = 0; i < count; ++i) amounts[i] = 1.0f;
}

// The first bucket at whose end the goal is reached, else the last one that holds anything; moves `have` to its start.
static inline int32_t cross_buckets(const Histogram& from, const Goal& goal, double* have) {
  int32_t last = 0;
  double before_last = *have;
  double walked = *have;
  for (int32_t b = 0; b < kBuckets; ++b) {
    if (from.amounts[b] == 0.0) continue;
    last = b;
    before_last = walked;
    walked += from.amounts[b];
    if (goal.is_reached(walked)) break;
  }
  *have = before_last;
  return last;
}

static inline int64_t list_bucket(const Distribution& d, int32_t bucket, int32_t* list) {
  const uint16_t wanted = static_cast<uint16_t>(bucket);
  int64_t count = 0;
  for (int64_t begin = 0; begin < d.vocab_size; begin += kScanBlock) {
    const int64_t size = block_size(begin, d.vocab_size);
    uint32_t hit = 0;
    for (int64_t i = begin; i < begin + size; ++i) hit |= d.buckets[i] == wanted;
    if (hit == 0) continue;
    for (int64_t i = begin; i < begin + size; ++i) {
      list[count] = static_cast<int32_t>(i);
      count += d.buckets[i] == wanted;
    }
  }
  return count;
}

static inline void sort_best_first(const float* values, int32_t* list, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    const int32_t id = list[i];
    int64_t j = i;
    for (; j > 0 && values[list[j - 1]] < values[id]; --j) list[j] = list[j - 1];  // ids ascend among equals
    list[j] = id;
  }
}

// In float64: two floats apart, however near, have a finite reciprocal of their distance.
static inline int32_t fine_bucket(double top, double factor, float value) {
  const double place = (top - static_cast<double>(value)) * factor;
  return static_cast<int32_t>(place < kBuckets - 1.0 ? place : kBuckets - 1.0);
}

// Narrows the list, of values from `low` to `top`, to one bucket of a histogram over that range. Its order (ascending
// ids) stays.
static inline int64_t narrow(const Distribution& d, const Measure& by, float top, float low, const Goal& goal,
                             Histogram* fine, int32_t* list, int64_t count, double* have) {
  const double high = static_cast<double>(top);
  const double factor = (kBuckets - 1.0) / (high - static_cast<double>(low));
  memset(fine, 0, sizeof(Histogram));
  for (int64_t begin = 0; begin < count; begin += kScanBlock) {
    const int64_t size = block_size(begin, count);
    float values[kScanBlock];
    float amounts[kScanBlock];
    for (int64_t i = 0; i < size; ++i) values[i] = d.values[list[begin + i]];
    amounts_of(d, by, values, size, amounts);
    for (int64_t i = 0; i < size; ++i) {
      fine->amounts[fine_bucket(high, factor, values[i])] += static_cast<double>(amounts[i]);
    }
  }
  const int32_t bucket = cross_buckets(*fine, goal, have);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = list[i];
    list[kept] = id;
    kept += fine_bucket(high, factor, d.values[id]) == bucket;
  }
  return kept;
}

// The shortest prefix that reaches the goal; all that is not ruled out where none does.
static inline Prefix find_prefix(const Distribution& d, const Measure& by, const Goal& goal, Histogram* fine,
                                 int32_t* list) {
  Prefix have{0.0f, 0, 0.0};
  int64_t count = list_bucket(d, cross_buckets(*by.coarse, goal, &have.amount), list);
  while (count > kSortable) {
    float top = d.values[list[0]];
    float low = top;
    for (int64_t i = 1; i < count; ++i) {
      const float value = d.values[list[i]];
      top = value > top ? value : top;
      low = value < low ? value : low;
    }
    if (top == low) break;  // all equal: ascending ids are the order
    count = narrow(d, by, top, low, goal, fine, list, count, &have.amount);
  }
  if (count <= kSortable) sort_best_first(d.values, list, count);
  for (int64_t i = 0; i < count; ++i) {
    have.id = list[i];
    have.value = d.values[have.id];
    float amount;
    amounts_of(d, by, &have.value, 1, &amount);
    have.amount += static_cast<double>(amount);
    if (goal.is_reached(have.amount)) break;
  }
  return have;
}

static inline bool is_beyond(float value, int32_t id, const Prefix& end) {
  return value < end.value || (value == end.value && id > end.id);
}

static inline void keep_best(const Distribution& d, const Measure& by, int64_t wanted, Histogram* fine, int32_t* list) {
  const Prefix kept = find_prefix(d, by, Goal{static_cast<double>(wanted), false}, fine, list);
  for (int64_t i = 0; i < d.vocab_size; ++i) {
    const float value = d.values[i];
    const bool is_out = value < kept.value || (value == kept.value && static_cast<int32_t>(i) > kept.id);
    d.buckets[i] = is_out ? kRuledOut : d.buckets[i];
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

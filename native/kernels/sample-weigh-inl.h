// What each token of a row weighs, e^((logit - top) / temperature), and how its place among the others is coded: a
// bucket of 1,024 over the range of logits, greater logits in lower buckets.
//
// Weights are float32, to 2 units in the last place; their sums are float64, in one fixed order. A weight below e^-87 is
// 0. What is ruled out lies in bucket kRuledOut.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/math-inl.h"
#include "kernels/sample-order-inl.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int32_t kBuckets = 1024;
constexpr uint16_t kRuledOut = kBuckets;
constexpr float kFarthest = 40.0f;  // temperatures below the top: what lies beyond shares the last bucket

struct Histogram {
  double amounts[kBuckets + 1];  // tokens, or what they weigh
};

// The tokens of a row, and how their values become weights and buckets.
struct Distribution {
  const float* values;  // [vocab_size]
  uint16_t* buckets;    // [vocab_size]
  int64_t vocab_size;
  float top;  // the greatest value: weight 1
  float inverse_temperature;
};

static inline void weights_of(const Distribution& d, const float* values, int64_t count, float* weights) {
  const F32 top = set1(d.top);
  const F32 factor = set1(d.inverse_temperature);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(weights + i, exp((load(values + i) - top) * factor));
  if (i < count) store_n(weights + i, count - i, exp((load_n(values + i, count - i) - top) * factor));
}

static inline int64_t block_size(int64_t begin, int64_t count) {
  return begin + kScanBlock < count ? kScanBlock : count - begin;
}

// The lowest value that is not -infinity; at most kFarthest temperatures below the top, so that one outlier does not
// coarsen the rest.
static inline float lowest_value(const Distribution& d) {
  const float* values = d.values;
  uint32_t low = 0xffffffffu;  // of keys counted from the one above -infinity's own, which wraps around to the most
  for (int64_t i = 0; i < d.vocab_size; ++i) {
    const uint32_t above = static_cast<uint32_t>(order_key(values[i])) - static_cast<uint32_t>(kLowestKey) - 1u;
    low = above < low ? above : low;
  }
  const float lowest = value_of_key(static_cast<int32_t>(low + static_cast<uint32_t>(kLowestKey) + 1u));
  const float reach = d.top - kFarthest / d.inverse_temperature;
  return lowest > reach ? lowest : reach;
}

// Puts every token of finite value into its bucket.
static inline void fill_buckets(const Distribution& d) {
  const float low = lowest_value(d);
  const float factor = d.top > low ? (kBuckets - 1) / (d.top - low) : 0.0f;
  const float last = kBuckets - 1;
  for (int64_t i = 0; i < d.vocab_size; ++i) {
    const float place = (d.top - d.values[i]) * factor;
    const int32_t bucket = static_cast<int32_t>(place < last ? place : last);
    d.buckets[i] = bits_of_float(d.values[i]) == 0xff800000u ? kRuledOut : static_cast<uint16_t>(bucket);
  }
}

// How many of a block are not ruled out.
static inline int64_t count_left(const uint16_t* buckets, int64_t count) {
  uint32_t left = 0;
  for (int64_t i = 0; i < count; ++i) left += buckets[i] != kRuledOut;
  return left;
}

// Adds each amount of a block to its bucket. Where many are ruled out the others are listed first: additions to one
// place wait for each other.
static inline void add_block(const uint16_t* buckets, const double* amounts, int64_t count, Histogram* to) {
  if (count_left(buckets, count) > count / 2) {
    for (int64_t i = 0; i < count; ++i) to->amounts[buckets[i]] += amounts[i];
    return;
  }
  int32_t places[kScanBlock + 1];
  int64_t left = 0;
  for (int64_t i = 0; i < count; ++i) {
    places[left] = static_cast<int32_t>(i);
    left += buckets[i] != kRuledOut;
  }
  for (int64_t i = 0; i < left; ++i) to->amounts[buckets[places[i]]] += amounts[places[i]];
}

static inline void count_tokens(const Distribution& d, Histogram* to) {
  memset(to, 0, sizeof(Histogram));
  double ones[kScanBlock];
  for (double& one : ones) one = 1.0;
  for (int64_t begin = 0; begin < d.vocab_size; begin += kScanBlock) {
    add_block(d.buckets + begin, ones, block_size(begin, d.vocab_size), to);
  }
}

// Rules out what weighs less than `least`, and adds up the weights of the rest.
static inline void weigh_tokens(const Distribution& d, double least, Histogram* to) {
  memset(to, 0, sizeof(Histogram));
  const float bar = static_cast<float>(least);
  float weights[kScanBlock];
  double amounts[kScanBlock];
  for (int64_t begin = 0; begin < d.vocab_size; begin += kScanBlock) {
    const int64_t count = block_size(begin, d.vocab_size);
    uint16_t* buckets = d.buckets + begin;
    if (count_left(buckets, count) == 0) continue;
    weights_of(d, d.values + begin, count, weights);
    if (least > 0.0) {
      for (int64_t i = 0; i < count; ++i) buckets[i] = weights[i] < bar ? kRuledOut : buckets[i];
    }
    for (int64_t i = 0; i < count; ++i) amounts[i] = static_cast<double>(weights[i]);
    add_block(buckets, amounts, count, to);
  }
}

static inline double total(const Histogram& of) {
  double sum = 0.0;
  for (int32_t b = 0; b < kBuckets; ++b) sum += of.amounts[b];
  return sum;
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

// Log-probabilities of the model's own logits, whatever sampling makes of them. In float64, each row's sum in one fixed
// order.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/sample-order-inl.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// One rounding where the instruction set has it; never a call.
static inline double fused(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

constexpr double kLeastExponent = -708.0;  // e^x is a normal number from here on

// e^x for kLeastExponent <= x <= 0, within 2 units in the last place, exactly 1 at 0. No branch, no call: loops over it
// vectorise. Taylor's series to x^13 after taking out powers of two.
static inline double exp_of(double x) {
  const double shifted = fused(x, 1.4426950408889634, 0x1.8p52);  // the low bits hold the nearest integer
  const double n = shifted - 0x1.8p52;
  const double r = fused(n, -1.90821492927058770002e-10, fused(n, -6.93147180369123816490e-01, x));
  double p = 1.0 / 6227020800.0;
  p = fused(p, r, 1.0 / 479001600.0);
  p = fused(p, r, 1.0 / 39916800.0);
  p = fused(p, r, 1.0 / 3628800.0);
  p = fused(p, r, 1.0 / 362880.0);
  p = fused(p, r, 1.0 / 40320.0);
  p = fused(p, r, 1.0 / 5040.0);
  p = fused(p, r, 1.0 / 720.0);
  p = fused(p, r, 1.0 / 120.0);
  p = fused(p, r, 1.0 / 24.0);
  p = fused(p, r, 1.0 / 6.0);
  p = fused(p, r, 0.5);
  p = fused(p, r, 1.0);
  p = fused(p, r, 1.0);
  uint64_t bits, power;
  memcpy(&power, &shifted, 8);
  memcpy(&bits, &p, 8);
  bits += power << 52;
  memcpy(&p, &bits, 8);
  return p;
}

// In two loops: the bound's comparison in one with the series would keep gcc 12 from vectorising it.
static inline double bounded_exponent(double x) { return x > kLeastExponent ? x : kLeastExponent; }

// log of the sum of e^(logit - top), float64: eight partial sums, each over every eighth token.
static inline double log_mass(const float* logits, int64_t count, double top) {
  double sums[8] = {};
  double weights[kScanBlock];
  for (int64_t begin = 0; begin < count; begin += kScanBlock) {
    const int64_t size = begin + kScanBlock < count ? kScanBlock : count - begin;
    for (int64_t i = 0; i < size; ++i) weights[i] = bounded_exponent(static_cast<double>(logits[begin + i]) - top);
    for (int64_t i = 0; i < size; ++i) weights[i] = exp_of(weights[i]);
    for (int64_t i = size; i < kScanBlock; ++i) weights[i] = 0.0;
    for (int64_t i = 0; i < kScanBlock; i += 8) {
      for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += weights[i + lane];
    }
  }
  double total = 0.0;
  for (int64_t lane = 0; lane < 8; ++lane) total += sums[lane];
  return __builtin_log(total);
}

static inline float logprob_of(float logit, double top, double log_sum) {
  const double value = (static_cast<double>(logit) - top) - log_sum;
  return static_cast<float>(value > kLogprobFloor ? value : kLogprobFloor);
}

// Log-probabilities of `ids` [num_ids] (each inside the vocabulary) and of the num_top best, from the model's logits.
static SampleStatus token_logprobs(const float* logits, int64_t vocab_size, const int32_t* ids, int64_t num_ids,
                                   float* logprobs, int64_t num_top, int32_t* top_ids, float* top_logprobs) {
  float top_value;
  const SampleStatus status = check_logits(logits, vocab_size, &top_value);
  if (status != SampleStatus::kOk) return status;
  const double top = static_cast<double>(top_value);
  const double log_sum = log_mass(logits, vocab_size, top);
  for (int64_t i = 0; i < num_ids; ++i) logprobs[i] = logprob_of(logits[ids[i]], top, log_sum);
  best_ids(logits, vocab_size, num_top, top_ids);
  for (int64_t i = 0; i < num_top; ++i) {
    top_logprobs[i] = top_ids[i] < 0 ? static_cast<float>(kLogprobFloor) : logprob_of(logits[top_ids[i]], top, log_sum);
  }
  return SampleStatus::kOk;
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

// Normalisations. Sums run over four accumulators of 16 lanes in a fixed order, the same for every row.
#pragma once

#include "kernels.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// The sum of term(x[i]) over i in [0, n); lanes past the end contribute term of nothing: 0.
template <class Term>
OCTAVO_SIMD float sum_terms(const float* x, int64_t n, Term term) {
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int j = 0; j < 4; ++j) sums[j] = term(sums[j], load(x + i + 16 * j));
  }
  for (int j = 0; i + 16 <= n; i += 16, ++j) sums[j] = term(sums[j], load(x + i));
  if (i < n) {
    const F32 last = term(zero(), load_n(x + i, n - i));
    sums[3] = sums[3] + select(mask_range(0, n - i), last, zero());
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

static void rms_norm(const float* x, int64_t x_stride, const float* weight, int64_t group, int64_t width, float eps,
                     int64_t rows, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t begin = 0; begin < width; begin += group) {
      const float* in = x + r * x_stride + begin;
      float* to = out + r * out_stride + begin;
      const float squares = sum_terms(in, group, [](F32 s, F32 v) { return fma(v, v, s); });
      const F32 inverse = set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(group) + eps));
      int64_t i = 0;
      for (; i + 16 <= group; i += 16) store(to + i, load(in + i) * inverse * load(weight + i));
      if (i < group) store_n(to + i, group - i, load_n(in + i, group - i) * inverse * load_n(weight + i, group - i));
    }
  }
}

static void layer_norm(const float* x, int64_t x_stride, const float* weight, const float* bias, int64_t width,
                       float eps, int64_t rows, float* out, int64_t out_stride) {
  const float count = static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * x_stride;
    float* to = out + r * out_stride;
    const float mean = sum_terms(in, width, [](F32 s, F32 v) { return s + v; }) / count;
    const F32 middle = set1(mean);
    const float squares = sum_terms(in, width, [middle](F32 s, F32 v) { return fma(v - middle, v - middle, s); });
    const F32 inverse = set1(1.0f / __builtin_sqrtf(squares / count + eps));
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) {
      store(to + i, fma((load(in + i) - middle) * inverse, load(weight + i), load(bias + i)));
    }
    if (i < width) {
      const int64_t n = width - i;
      store_n(to + i, n, fma((load_n(in + i, n) - middle) * inverse, load_n(weight + i, n), load_n(bias + i, n)));
    }
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

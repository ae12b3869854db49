// Exponential, hyperbolic tangent, error function and the activations made of them, on 16 lanes. No table, no branch:
// every lane takes the same steps, so a value's result does not depend on its neighbours.
#pragma once

#include "kernels.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// e^x to 2 units in the last place; exactly 1 at 0; 0 below -87.3; the largest finite power above 88; NaN for NaN.
OCTAVO_SIMD F32 exp(F32 x) {
  const F32 lowest = set1(-87.3f);
  const F32 bounded = min(set1(88.0f), max(lowest, x));
  const F32 n = round_nearest(bounded * set1(1.44269504088896341f));
  F32 r = fma(n, set1(-0.693145751953125f), bounded);  // ln 2 in two parts, the first with few bits
  r = fma(n, set1(-1.42860682030941723212e-6f), r);
  F32 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + set1(1.0f);
  return select(less(x, lowest), zero(), scale2(p, n));
}

// The series of 2^x on [-1/2, 1/2], least relative error: 1e-4, 1.1e-7 and 1.6e-8 for degrees 3, 5 and 6.
template <int kDegree>
OCTAVO_SIMD F32 power_series(F32 x) {
  static_assert(kDegree == 3 || kDegree == 5 || kDegree == 6, "no such series");
  F32 p;
  if constexpr (kDegree == 3) {
    p = fma(fma(set1(5.500884727e-2f), x, set1(2.422111779e-1f)), x, set1(6.932829618e-1f));
  } else if constexpr (kDegree == 5) {
    p = fma(set1(1.326473663e-3f), x, set1(9.671516716e-3f));
    p = fma(fma(fma(p, x, set1(5.550733581e-2f)), x, set1(2.402224243e-1f)), x, set1(6.931470037e-1f));
  } else {
    p = fma(fma(set1(1.535337069e-4f), x, set1(1.339887735e-3f)), x, set1(9.618436918e-3f));
    p = fma(fma(fma(p, x, set1(5.550332367e-2f)), x, set1(2.402264774e-1f)), x, set1(6.931471825e-1f));
  }
  return fma(p, x, set1(1.0f));
}

// 2^x for x below 127; exactly 1 at 0, exactly 0 below kZeroPower and at -infinity; NaN for NaN.
template <int kDegree>
OCTAVO_SIMD F32 power_of_two(F32 x) {
  const F32 bounded = max(set1(kZeroPower), x);
  const F32 n = round_nearest(bounded);
  return scale2(power_series<kDegree>(bounded - n), n);
}

// 1 - 2 / (e^2|x| + 1), with a series near 0 where that would cancel.
OCTAVO_SIMD F32 tanh(F32 x) {
  const F32 size = abs(x);
  const F32 far = set1(1.0f) - set1(2.0f) / (exp(size + size) + set1(1.0f));
  const F32 s = x * x;
  F32 near = set1(-5.70498872745e-3f);
  near = fma(near, s, set1(2.06390887954e-2f));
  near = fma(near, s, set1(-5.37397155531e-2f));
  near = fma(near, s, set1(1.33314422036e-1f));
  near = fma(near, s, set1(-3.33332819422e-1f));
  near = fma(near * s, size, size);
  return copy_sign(select(less(size, set1(0.625f)), near, far), x);
}

// Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
OCTAVO_SIMD F32 erf(F32 x) {
  const F32 size = abs(x);
  const F32 t = set1(1.0f) / fma(set1(0.3275911f), size, set1(1.0f));
  F32 p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  return copy_sign(set1(1.0f) - p * t * exp(zero() - x * x), x);
}

template <Activation kind>
OCTAVO_SIMD F32 activate(F32 x) {
  if constexpr (kind == Activation::kSilu) {
    return x / (set1(1.0f) + exp(zero() - x));
  } else if constexpr (kind == Activation::kGelu) {
    return set1(0.5f) * x * (set1(1.0f) + erf(x * set1(0.70710678118654752f)));
  } else if constexpr (kind == Activation::kGeluTanh) {
    const F32 inner = set1(0.79788456080286536f) * fma(set1(0.044715f) * x, x * x, x);
    return set1(0.5f) * x * (set1(1.0f) + tanh(inner));
  } else {
    return max(zero(), x);
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

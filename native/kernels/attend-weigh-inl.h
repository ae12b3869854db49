// Scores to weights: the softmax of one step of 64 keys, against the running maximum of a part.
#pragma once

#include "kernels/attend-state-inl.h"
#include "kernels/attend-tile-inl.h"
#include "kernels/math-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr float kLowest = -3.402823466e38f;

// Scores to weights: scale, cap, mask, new maximum, exponential, sums.
template <class Cache>
static void weigh_rows(const AttendArgs& args, const AttendPiece& piece, int64_t first_key, const AttendStep& step,
                       int64_t heads, int64_t rows, const AttendScratch& scratch, float* maxima) {
  const F32 scale_by = set1(args.scale);
  const F32 never = set1(-__builtin_inff());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = piece.position + r / heads;
    const int64_t end = position + 1 - first_key;
    const int64_t begin = args.window > 0 ? end - args.window : 0;
    F32 s[kTilesPerStep];
    for (int64_t t = 0; t < kTilesPerStep; ++t) {
      s[t] = never;
      if (t < step.first_tile || t >= step.end_tile) continue;
      F32 score = load(scratch.scores + r * kKeysPerStep + 16 * t) * scale_by;
      if (args.softcap > 0.0f) score = set1(args.softcap) * tanh(score / set1(args.softcap));
      const bool whole = begin <= 16 * t && end >= 16 * t + 16;
      s[t] = whole ? score : select(mask_range(begin - 16 * t, end - 16 * t), score, never);
    }
    const float old_max = maxima[r];
    const float step_max = max_lane(max(max(s[0], s[1]), max(s[2], s[3])));
    const float new_max = step_max > old_max ? step_max : old_max;
    float factor = 1.0f;
    if (new_max != old_max) {
      float lanes[16];
      store(lanes, exp(set1(old_max - new_max)));
      factor = lanes[0];
    }
    maxima[r] = new_max;
    scratch.factors[r] = factor;
    F32 p[kTilesPerStep];
    for (int t = 0; t < kTilesPerStep; ++t) p[t] = exp(s[t] - set1(new_max));
    const F32 added =
        Cache::round_chances(p, reinterpret_cast<typename Cache::Chance*>(scratch.chances) + r * kKeysPerStep);
    store(scratch.lanes + 16 * r, fma(load(scratch.lanes + 16 * r), set1(factor), added));
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

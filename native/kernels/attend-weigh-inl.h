// Scores to weights: the softmax of one step of 64 keys for a block of rows.
//
// A row's weights are relative to a maximum that moves only when a score exceeds it by more than kHeadroom: then what was
// summed so far is scaled down. That depends on the row's own scores alone, and spares the search for the largest of 64
// scores and the scaling in most steps.
#pragma once

#include "kernels/attend-state-inl.h"
#include "kernels/attend-tile-inl.h"
#include "kernels/math-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr float kLowest = -3.402823466e38f;
constexpr float kHeadroom = 8.0f;  // weights stay below 2^8

// The keys of a step that a row may see: [begin, end) of 64.
struct AttendRange {
  int64_t begin, end;
};

// Returns the row's new maximum and scales its sums to it.
static __attribute__((noinline)) float raise_maximum(F32 scores, float maximum, int64_t dim, float* lanes, float* sums) {
  const float raised = max_lane(scores);
  if (maximum == kLowest) return raised;  // nothing was summed yet
  const F32 factor = power_of_two<kExactDegree>(set1(maximum - raised));
  store(lanes, load(lanes) * factor);
  for (int64_t d = 0; d < dim; d += 16) store(sums + d, load(sums + d) * factor);
  return raised;
}

OCTAVO_SIMD F32 cap_score(F32 score, float softcap) {
  return set1(softcap * kLog2E) * tanh(score / set1(softcap));
}

template <class Cache>
OCTAVO_SIMD void weigh_row(const F32* s, const AttendStep& step, int64_t dim, float* maximum, float* lanes, float* sums,
                           typename Cache::Chance* chances) {
  const F32 top = max(max(s[0], s[1]), max(s[2], s[3]));
  if (any_above(top, *maximum + kHeadroom)) *maximum = raise_maximum(top, *maximum, dim, lanes, sums);
  const F32 relative_to = set1(*maximum);
  F32 p[kTilesPerStep];
  each<kTilesPerStep>([&](auto t) OCTAVO_FLAT { p[t] = power_of_two<Cache::kPowerDegree>(s[t] - relative_to); });
  store(lanes, load(lanes) + write_chances(Cache{}, p, step, chances));
}

// `rows` rows of scores [rows][64] to weights; range_of(row) says what each may see.
template <class Cache, class RangeOf>
OCTAVO_SIMD void weigh_rows(const AttendStep& step, int64_t rows, int64_t dim, float softcap, bool whole,
                            const RangeOf& range_of, const float* scores, float* maxima, float* lanes, float* sums,
                            typename Cache::Chance* chances) {
  const F32 never = set1(-__builtin_inff());
  for (int64_t r = 0; r < rows; ++r, scores += kKeysPerStep, lanes += 16, sums += dim, chances += kKeysPerStep) {
    F32 s[kTilesPerStep];
    if (whole && softcap == 0.0f) {
      each<kTilesPerStep>([&](auto t) OCTAVO_FLAT { s[t] = load(scores + 16 * t); });
    } else {
      const AttendRange range = range_of(r);
      each<kTilesPerStep>([&](auto t) OCTAVO_FLAT {
        s[t] = never;
        if (t >= step.first_tile && t < step.end_tile) {
          F32 score = load(scores + 16 * t);
          if (softcap > 0.0f) score = cap_score(score, softcap);
          s[t] = select(mask_range(range.begin - 16 * t, range.end - 16 * t), score, never);
        }
      });
    }
    weigh_row<Cache>(s, step, dim, maxima + r, lanes, sums, chances);
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

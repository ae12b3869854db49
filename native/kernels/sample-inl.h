// Drawing tokens from logits and reporting log-probabilities; one row at a time, each independent of the others.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/sample-adjust-inl.h"
#include "kernels/sample-logprob-inl.h"
#include "kernels/sample-order-inl.h"
#include "kernels/sample-prefix-inl.h"
#include "kernels/sample-weigh-inl.h"
#include "kernels/sample.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// The scratch of one thread, laid over the caller's bytes. `marks` are zero between calls.
struct SampleScratch {
  Histogram* coarse;
  Histogram* fine;
  float* values;      // [vocab_size] adjusted logits; -inf: ruled out
  int32_t* list;      // [vocab_size] ids under closer look, ascending; one more is written to, and not counted
  int32_t* marks;     // [vocab_size]
  uint16_t* buckets;  // [vocab_size]
};

static size_t sample_scratch_bytes(int64_t vocab_size) {
  return 2 * sizeof(Histogram) + static_cast<size_t>(vocab_size) * 14 + 64;
}

static inline SampleScratch lay_out_scratch(void* scratch, int64_t vocab_size) {
  uint8_t* at = static_cast<uint8_t*>(scratch);
  SampleScratch out;
  out.coarse = reinterpret_cast<Histogram*>(at);
  out.fine = out.coarse + 1;
  out.values = reinterpret_cast<float*>(out.coarse + 2);
  out.marks = reinterpret_cast<int32_t*>(out.values + vocab_size);
  out.list = out.marks + vocab_size;
  out.buckets = reinterpret_cast<uint16_t*>(out.list + vocab_size + 1);
  return out;
}

// min-p, top-k, top-p, then a number a token. `values`: the row's, adjusted; `top` the greatest of them.
static inline void draw_tokens(const SampleRow& row, const float* values, int64_t vocab_size, float top,
                               const SampleScratch& s, int32_t* out) {
  const Distribution d{values, s.buckets, vocab_size, top, static_cast<float>(1.0 / row.temperature)};
  fill_buckets(d);
  if (row.top_k > 0 && row.top_k < vocab_size) {
    count_tokens(d, s.coarse);
    keep_best(d, Measure{s.coarse, true}, row.top_k, s.fine, s.list);
  }
  weigh_tokens(d, row.min_p, s.coarse);
  const Measure weight{s.coarse, false};
  Prefix kept{values[0], INT32_MAX, total(*s.coarse)};
  const bool is_cut = row.top_p < 1.0;
  if (is_cut) kept = find_prefix(d, weight, Goal{row.top_p * kept.amount, false}, s.fine, s.list);
  for (int64_t i = 0; i < row.num_samples; ++i) {
    const double u = uniform(row.seed, row.position, row.sample_index + static_cast<uint32_t>(i));
    const Prefix drawn = find_prefix(d, weight, Goal{u * kept.amount, true}, s.fine, s.list);
    out[i] = is_cut && is_beyond(drawn.value, drawn.id, kept) ? kept.id : drawn.id;
  }
}

// Draws row.num_samples tokens. `scratch` has sample_scratch_bytes, is 64-byte aligned, belongs to one thread and was
// zero before its first use.
static SampleStatus sample(const SampleRow& row, int64_t vocab_size, void* scratch, const SampleOut& out) {
  const SampleScratch s = lay_out_scratch(scratch, vocab_size);
  float top;
  SampleStatus status = check_logits(row.logits, vocab_size, &top);
  if (status != SampleStatus::kOk) return status;
  const float* values = row.logits;
  if (is_adjusted(row)) {
    adjust(row, vocab_size, s.values, s.marks);
    values = s.values;
    status = check_logits(values, vocab_size, &top);
    if (status != SampleStatus::kOk) return status;
  }
  if (row.temperature < kGreedyTemperature) {
    const int32_t best = first_equal(values, vocab_size, top);
    for (int64_t i = 0; i < row.num_samples; ++i) out.token_ids[i] = best;
  } else {
    draw_tokens(row, values, vocab_size, top, s, out.token_ids);
  }
  if (row.num_top < 0) return SampleStatus::kOk;
  return token_logprobs(row.logits, vocab_size, out.token_ids, row.num_samples, out.logprobs, row.num_top, out.top_ids,
                        out.top_logprobs);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

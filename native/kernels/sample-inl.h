// Drawing tokens from logits and reporting log-probabilities; one row at a time, each independent of the others.
//
// "Best" means greater logit first, lower id first among equals. Every filter keeps a prefix of the tokens in that
// order, and a draw is the place in it where the running sum of probabilities passes a number. So nothing is sorted but
// the few tokens around such a place: a histogram over the logits (count and mass a bucket) says in which bucket it
// lies, a finer one inside that bucket until few are left. Sums are float64 in one fixed order.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/pack-inl.h"
#include "kernels/sample.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int64_t kBuckets = 1024;
constexpr int64_t kSortable = 32;    // so few are sorted by insertion
constexpr int64_t kScanBlock = 256;  // tokens a vectorised pass handles before a scalar one looks at them

struct Bucket {
  double mass;
  double count;  // a whole number; beside the mass, so that one vector addition counts and weighs a token
};

struct Histogram {
  Bucket buckets[kBuckets + 1];  // the last one takes what is ruled out
};

// The scratch of one thread, laid over the caller's bytes. `marks` are zero between calls.
struct SampleScratch {
  Histogram* coarse;
  Histogram* fine;
  float* values;   // [vocab_size] adjusted logits; -inf: ruled out
  int32_t* list;   // [vocab_size] ids under closer look, ascending
  int32_t* marks;  // [vocab_size]
};

static size_t sample_scratch_bytes(int64_t vocab_size) {
  return 2 * sizeof(Histogram) + static_cast<size_t>(vocab_size) * 12 + 64;
}

static inline SampleScratch lay_out_scratch(void* scratch, int64_t vocab_size) {
  uint8_t* at = static_cast<uint8_t*>(scratch);
  SampleScratch out;
  out.coarse = reinterpret_cast<Histogram*>(at);
  out.fine = out.coarse + 1;
  out.values = reinterpret_cast<float*>(out.coarse + 2);
  out.list = reinterpret_cast<int32_t*>(out.values + vocab_size);
  out.marks = out.list + vocab_size;
  return out;
}

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

// --- penalties, bias, masks ---

static inline bool is_adjusted(const SampleRow& row) {
  return row.repetition_penalty != 1.0f || row.frequency_penalty != 0.0f || row.presence_penalty != 0.0f ||
         row.num_biases > 0 || row.num_masked > 0 || row.allowed != nullptr;
}

static inline void penalise(const SampleRow& row, int64_t vocab_size, float* values, int32_t* marks) {
  if (row.repetition_penalty != 1.0f) {
    for (int64_t i = 0; i < row.num_tokens; ++i) {
      const int32_t id = row.token_ids[i];
      if (id < 0 || id >= vocab_size || marks[id] != 0) continue;
      marks[id] = 1;
      values[id] = values[id] > 0.0f ? values[id] / row.repetition_penalty : values[id] * row.repetition_penalty;
    }
    for (int64_t i = 0; i < row.num_tokens; ++i) {
      const int32_t id = row.token_ids[i];
      if (id >= 0 && id < vocab_size) marks[id] = 0;
    }
  }
  if (row.frequency_penalty == 0.0f && row.presence_penalty == 0.0f) return;
  for (int64_t i = row.num_prompt_tokens; i < row.num_tokens; ++i) {
    const int32_t id = row.token_ids[i];
    if (id >= 0 && id < vocab_size) ++marks[id];
  }
  for (int64_t i = row.num_prompt_tokens; i < row.num_tokens; ++i) {
    const int32_t id = row.token_ids[i];
    if (id < 0 || id >= vocab_size || marks[id] == 0) continue;
    values[id] -= row.frequency_penalty * static_cast<float>(marks[id]);
    values[id] -= row.presence_penalty;
    marks[id] = 0;
  }
}

static inline void adjust(const SampleRow& row, int64_t vocab_size, float* values, int32_t* marks) {
  const float lowest = float_of_bits(0xff800000u);
  memcpy(values, row.logits, static_cast<size_t>(vocab_size) * 4);
  penalise(row, vocab_size, values, marks);
  for (int64_t i = 0; i < row.num_biases; ++i) {
    const int32_t id = row.bias_ids[i];
    if (id >= 0 && id < vocab_size) values[id] += row.biases[i];
  }
  for (int64_t i = 0; i < row.num_masked; ++i) {
    const int32_t id = row.masked_ids[i];
    if (id >= 0 && id < vocab_size) values[id] = lowest;
  }
  if (row.allowed == nullptr) return;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const bool is_allowed = ((row.allowed[i / 32] >> (i % 32)) & 1u) != 0;
    values[i] = is_allowed ? values[i] : lowest;
  }
}

// --- places in the order of best first ---

// The tokens of one look: those of `values` that are not ruled out, and how a value becomes a weight and a bucket.
struct Distribution {
  const float* values;
  int64_t vocab_size;
  double top;                  // the greatest value: weight 1
  double inverse_temperature;  // weight = e^((value - top) * inverse_temperature)
  double bucket_top;           // of the histogram in use
  double bucket_factor;
  double mass;
  int64_t count;
};

// The end of a prefix: its last token, how many it has and what they weigh.
struct Prefix {
  float value;
  int32_t id;
  int64_t count;
  double mass;
};

// Where a prefix ends: the first token at which `count` tokens, or at least (or more than) `mass`, are reached.
struct Goal {
  int64_t count;  // 0: the goal is a mass
  double mass;
  bool above;

  bool is_reached(int64_t have_count, double have_mass) const {
    if (count > 0) return have_count >= count;
    return above ? have_mass > mass : have_mass >= mass;
  }
};

static inline double exponent_of(const Distribution& d, float value) {
  const double exponent = (static_cast<double>(value) - d.top) * d.inverse_temperature;
  return exponent > kLeastExponent ? exponent : kLeastExponent;
}

static inline double weight_of(const Distribution& d, float value) { return exp_of(exponent_of(d, value)); }

// In two loops: the bound's comparison in one with the series would keep gcc 12 from vectorising it.
static inline void weights_of(const Distribution& d, const float* values, int64_t count, double* weights) {
  for (int64_t i = 0; i < count; ++i) weights[i] = exponent_of(d, values[i]);
  for (int64_t i = 0; i < count; ++i) weights[i] = exp_of(weights[i]);
}

// Greater values lie in lower buckets; what is ruled out lies in bucket kBuckets.
static inline int32_t bucket_of(const Distribution& d, float value) {
  const double place = (d.bucket_top - static_cast<double>(value)) * d.bucket_factor;
  const int32_t bucket = static_cast<int32_t>(place < kBuckets - 1.0 ? place : kBuckets - 1.0);
  return bits_of_float(value) == 0xff800000u ? static_cast<int32_t>(kBuckets) : bucket;
}

static inline void set_buckets(Distribution& d, double top, double low) {
  d.bucket_top = top;
  d.bucket_factor = top > low ? (kBuckets - 1.0) / (top - low) : 0.0;
}

static inline void add_to_histogram(const Distribution& d, const float* values, int64_t count, double least,
                                    float* ruled, Histogram* to) {
  double weights[kScanBlock];
  int32_t buckets[kScanBlock];
  weights_of(d, values, count, weights);
  if (least > 0.0) {
    const float lowest = float_of_bits(0xff800000u);
    for (int64_t i = 0; i < count; ++i) ruled[i] = weights[i] >= least ? values[i] : lowest;
  }
  for (int64_t i = 0; i < count; ++i) buckets[i] = bucket_of(d, values[i]);
  for (int64_t i = 0; i < count; ++i) {
    Bucket& bucket = to->buckets[buckets[i]];
    bucket.mass += weights[i];
    bucket.count += 1.0;
  }
}

// Fills the coarse histogram of all tokens and rules out in `values` those below min_p.
static inline Distribution distribute(const SampleRow& row, int64_t vocab_size, float top, const SampleScratch& s) {
  Distribution d{};
  d.values = s.values;
  d.vocab_size = vocab_size;
  d.top = static_cast<double>(top);
  d.inverse_temperature = 1.0 / row.temperature;
  int32_t low = INT32_MAX;  // of the finite ones; bounded so that a far outlier does not coarsen the rest
  for (int64_t i = 0; i < vocab_size; ++i) {
    const int32_t key = order_key(s.values[i]);
    const int32_t finite = key == kLowestKey ? INT32_MAX : key;
    low = finite < low ? finite : low;
  }
  const double reach = d.top - 40.0 * row.temperature;
  const double lowest = static_cast<double>(value_of_key(low));
  set_buckets(d, d.top, lowest > reach ? lowest : reach);
  memset(s.coarse, 0, sizeof(Histogram));
  for (int64_t begin = 0; begin < vocab_size; begin += kScanBlock) {
    const int64_t count = begin + kScanBlock < vocab_size ? kScanBlock : vocab_size - begin;
    add_to_histogram(d, s.values + begin, count, row.min_p, s.values + begin, s.coarse);
  }
  for (int64_t b = 0; b < kBuckets; ++b) {
    d.mass += s.coarse->buckets[b].mass;
    d.count += static_cast<int64_t>(s.coarse->buckets[b].count);
  }
  return d;
}

// The first bucket at whose end the goal is reached, else the last one that holds anything; moves `have` to its start.
static inline int32_t cross_buckets(const Histogram& from, const Goal& goal, Prefix* have) {
  int32_t last = 0;
  Prefix before_last = *have;
  Prefix walked = *have;
  for (int32_t b = 0; b < kBuckets; ++b) {
    if (from.buckets[b].count == 0.0) continue;
    last = b;
    before_last = walked;
    walked.count += static_cast<int64_t>(from.buckets[b].count);
    walked.mass += from.buckets[b].mass;
    if (goal.is_reached(walked.count, walked.mass)) break;
  }
  *have = before_last;
  return last;
}

static inline int64_t list_bucket(const Distribution& d, int32_t bucket, int32_t* list) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < d.vocab_size; begin += kScanBlock) {
    const int64_t size = begin + kScanBlock < d.vocab_size ? kScanBlock : d.vocab_size - begin;
    int32_t buckets[kScanBlock];
    int32_t hit = 0;
    for (int64_t i = 0; i < size; ++i) {
      buckets[i] = bucket_of(d, d.values[begin + i]);
      hit |= buckets[i] == bucket;
    }
    if (hit == 0) continue;
    for (int64_t i = 0; i < size; ++i) {
      if (buckets[i] == bucket) list[count++] = static_cast<int32_t>(begin + i);
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

// Narrows the list to one bucket of a histogram over its own range. Its order (ascending ids) stays.
static inline int64_t narrow(const Distribution& d, double top, double low, const Goal& goal, const SampleScratch& s,
                             int64_t count, Prefix* have) {
  Distribution closer = d;
  set_buckets(closer, top, low);
  memset(s.fine, 0, sizeof(Histogram));
  for (int64_t begin = 0; begin < count; begin += kScanBlock) {
    const int64_t size = begin + kScanBlock < count ? kScanBlock : count - begin;
    float values[kScanBlock];
    for (int64_t i = 0; i < size; ++i) values[i] = d.values[s.list[begin + i]];
    add_to_histogram(closer, values, size, 0.0, nullptr, s.fine);
  }
  const int32_t bucket = cross_buckets(*s.fine, goal, have);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = s.list[i];
    s.list[kept] = id;
    kept += bucket_of(closer, d.values[id]) == bucket;
  }
  return kept;
}

// The shortest prefix that reaches the goal; the whole distribution where none does.
static inline Prefix find_prefix(const Distribution& d, const Goal& goal, const SampleScratch& s) {
  Prefix have{0.0f, 0, 0, 0.0};
  int64_t count = list_bucket(d, cross_buckets(*s.coarse, goal, &have), s.list);
  while (count > kSortable) {
    float top = d.values[s.list[0]];
    float low = top;
    for (int64_t i = 1; i < count; ++i) {
      const float value = d.values[s.list[i]];
      top = value > top ? value : top;
      low = value < low ? value : low;
    }
    if (top == low) break;  // all equal: ascending ids are the order
    count = narrow(d, static_cast<double>(top), static_cast<double>(low), goal, s, count, &have);
  }
  if (count <= kSortable) sort_best_first(d.values, s.list, count);
  for (int64_t i = 0; i < count; ++i) {
    have.id = s.list[i];
    have.value = d.values[have.id];
    ++have.count;
    have.mass += weight_of(d, have.value);
    if (goal.is_reached(have.count, have.mass)) break;
  }
  return have;
}

static inline void draw_tokens(const SampleRow& row, int64_t vocab_size, float top, const SampleScratch& s,
                               int32_t* out) {
  const Distribution d = distribute(row, vocab_size, top, s);
  Prefix kept{0.0f, -1, d.count, d.mass};  // id -1: all of it
  if (row.top_k > 0 && row.top_k < kept.count) kept = find_prefix(d, Goal{row.top_k, 0.0, false}, s);
  if (row.top_p < 1.0) {
    const Prefix nucleus = find_prefix(d, Goal{0, row.top_p * kept.mass, false}, s);
    if (nucleus.count < kept.count) kept = nucleus;
  }
  for (int64_t i = 0; i < row.num_samples; ++i) {
    const double u = uniform(row.seed, row.position, row.sample_index + static_cast<uint32_t>(i));
    const Prefix drawn = find_prefix(d, Goal{0, u * kept.mass, true}, s);
    out[i] = kept.id >= 0 && drawn.count > kept.count ? kept.id : drawn.id;
  }
}

// --- log-probabilities ---

// log of the sum of e^(logit - top), float64: eight partial sums, each over every eighth token.
static inline double log_mass(const float* logits, int64_t count, double top) {
  Distribution d{};
  d.top = top;
  d.inverse_temperature = 1.0;
  double sums[8] = {};
  double weights[kScanBlock];
  for (int64_t begin = 0; begin < count; begin += kScanBlock) {
    const int64_t size = begin + kScanBlock < count ? kScanBlock : count - begin;
    weights_of(d, logits + begin, size, weights);
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

// Draws row.num_samples tokens. `scratch` has sample_scratch_bytes, is 64-byte aligned, belongs to one thread and was
// zero before its first use.
static SampleStatus sample(const SampleRow& row, int64_t vocab_size, void* scratch, const SampleOut& out) {
  const SampleScratch s = lay_out_scratch(scratch, vocab_size);
  float top;
  SampleStatus status = check_logits(row.logits, vocab_size, &top);
  if (status != SampleStatus::kOk) return status;
  const bool is_greedy = row.temperature < kGreedyTemperature;
  const float* values = row.logits;
  if (is_adjusted(row)) {
    adjust(row, vocab_size, s.values, s.marks);
    values = s.values;
    status = check_logits(values, vocab_size, &top);
    if (status != SampleStatus::kOk) return status;
  } else if (!is_greedy) {
    memcpy(s.values, row.logits, static_cast<size_t>(vocab_size) * 4);
  }
  if (is_greedy) {
    const int32_t best = first_equal(values, vocab_size, top);
    for (int64_t i = 0; i < row.num_samples; ++i) out.token_ids[i] = best;
  } else {
    draw_tokens(row, vocab_size, top, s, out.token_ids);
  }
  if (row.num_top < 0) return SampleStatus::kOk;
  return token_logprobs(row.logits, vocab_size, out.token_ids, row.num_samples, out.logprobs, row.num_top, out.top_ids,
                        out.top_logprobs);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

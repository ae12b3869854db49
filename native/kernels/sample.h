// What one row of logits needs to become tokens. Plain pointers: whoever calls owns every byte, a step allocates none.
//
// In this order, on float32 logits: repetition, frequency, presence penalties; bias; masks; then greedy (temperature
// below 1e-5), or temperature, min-p, top-k, top-p and one uniform number a token.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace octavo {

constexpr double kGreedyTemperature = 1e-5;
constexpr double kLogprobFloor = -9999.0;

struct SampleRow {
  const float* logits;  // [vocab_size], the model's own; never written

  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = 0;  // below 1: all
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;

  const int32_t* token_ids = nullptr;  // the sequence so far, the prompt first; only penalties read it
  int64_t num_tokens = 0;
  int64_t num_prompt_tokens = 0;

  const int32_t* bias_ids = nullptr;  // each id once
  const float* biases = nullptr;
  int64_t num_biases = 0;

  const int32_t* masked_ids = nullptr;  // ruled out: end tokens while too few tokens were drawn
  int64_t num_masked = 0;

  const uint32_t* allowed = nullptr;  // a grammar's bitmap: bit i % 32 of word i / 32 allows token i; null: all

  uint64_t seed = 0;
  uint32_t position = 0;  // index in the sequence of the token being drawn
  uint32_t sample_index = 0;
  int64_t num_samples = 1;  // draw i uses sample_index + i

  int64_t num_top = -1;  // how many best log-probabilities to report beside the drawn tokens' own; -1: none at all
};

struct SampleOut {
  int32_t* token_ids;      // [num_samples]
  float* logprobs;         // [num_samples], where num_top >= 0
  int32_t* top_ids;        // [num_top], best first, ties by lower id; -1 past the end of the vocabulary
  float* top_logprobs;     // [num_top]
};

// Anything but kOk: the row is broken and its outputs mean nothing.
enum class SampleStatus : uint8_t { kOk, kNaN, kInfinity, kNothingLeft };

// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3):
// a number in [0, 1) with 53 random bits, from what it is for and nothing else.
static inline double uniform(uint64_t seed, uint32_t position, uint32_t sample_index) {
  uint32_t c0 = position, c1 = sample_index, c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((uint64_t{c0} << 21) | (c1 >> 11)) * 0x1p-53;
}

}  // namespace octavo

// Penalties, bias and masks: what a request changes in its row of logits before anything is drawn, float32 throughout.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/pack-inl.h"
#include "kernels/sample.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

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

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

// What becomes of a step's logits: tokens drawn for each row that wants some, log-probabilities of prompt tokens.
//
// The table keeps each row's parameters from the step that adds the row until another takes its place.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "runner.h"

namespace octavo {

// How one persistent row draws.
struct DrawParameters {
  double temperature = 0.0, top_p = 1.0, min_p = 0.0;
  int64_t top_k = 0;
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  std::vector<int32_t> bias_ids;
  std::vector<float> biases;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  int64_t num_prompt_tokens = 0;
  int64_t min_tokens = 0;
  std::vector<int32_t> end_token_ids;
  int64_t num_top = -1;
};

// The tokens of every persistent row: [num_rows, stride], of which num_tokens[row] are known.
struct TokenTable {
  const int32_t* token_ids;
  const int32_t* num_tokens;
  int64_t num_rows;
  int64_t stride;
};

// One prompt position whose next token's log-probability is wanted.
struct PromptQuery {
  int32_t token;  // of the step
  int32_t target;
  int32_t num_top;
};

class Drawing : public HeadConsumer {
 public:
  Drawing(const Kernels& kernels, int64_t vocab_size, int64_t num_rows, int num_threads);
  ~Drawing() override;
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;

  // Whether logits of so many tokens may be taken on so many threads.
  bool serves(int64_t vocab_size, int num_threads) const {
    return vocab_size == vocab_size_ && scratch_bytes_ * static_cast<size_t>(num_threads) <= mapped_bytes_;
  }

  // Throws std::invalid_argument for a row that is not there or an id outside the vocabulary.
  void set_row(int64_t row, DrawParameters parameters);

  // Readies a step: `rows[i]` draws num_samples[i] tokens from the step's token `wanted[i]`; then the prompt queries.
  // `allowed`: empty, or for each row a bitmap of the tokens it may draw (SampleRow::allowed) or null, alive until the
  // step is over. `logits`: null, or where the rows that draw leave a copy, [rows, vocab_size].
  void begin(const TokenTable& tokens, const std::vector<int32_t>& rows, const std::vector<int32_t>& num_samples,
             std::vector<const uint32_t*> allowed, std::vector<PromptQuery> queries, float* logits);
  void take(int64_t index, const float* logits, int thread) noexcept override;

  const std::vector<int32_t>& token_ids() const { return token_ids_; }      // flat, num_samples of each row
  const std::vector<float>& logprobs() const { return logprobs_; }          // one a token id, then one a prompt query
  const std::vector<uint8_t>& statuses() const { return statuses_; }        // one a row, then one a prompt query
  const std::vector<int32_t>& top_ids() const { return top_ids_; }          // [rows and queries, max_top]
  const std::vector<float>& top_logprobs() const { return top_logprobs_; }  // the same
  int64_t max_top() const { return max_top_; }
  bool any_logprobs() const { return any_logprobs_; }
  bool any_failed() const;  // a row or a prompt query

 private:
  void draw(int64_t index, const float* logits, void* scratch) noexcept;
  void query(int64_t index, const float* logits) noexcept;

  const Kernels& kernels_;
  const int64_t vocab_size_;
  size_t scratch_bytes_, mapped_bytes_;
  uint8_t* scratch_;
  std::vector<DrawParameters> parameters_;
  // This step:
  TokenTable tokens_{};
  std::vector<int32_t> rows_, num_samples_;
  std::vector<size_t> first_sample_;
  std::vector<const uint32_t*> allowed_;
  std::vector<PromptQuery> queries_;
  float* logits_ = nullptr;
  int64_t max_top_ = 0;
  bool any_logprobs_ = false;
  std::vector<int32_t> token_ids_, top_ids_;
  std::vector<float> logprobs_, top_logprobs_;
  std::vector<uint8_t> statuses_;
};

}  // namespace octavo

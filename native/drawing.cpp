#include "drawing.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "memory.h"

namespace octavo {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

Drawing::Drawing(const Kernels& kernels, int64_t vocab_size, int64_t num_rows, int num_threads)
    : kernels_(kernels), vocab_size_(vocab_size), parameters_(static_cast<size_t>(num_rows)) {
  scratch_bytes_ = (kernels.sample_scratch_bytes(vocab_size) + 63) / 64 * 64;
  mapped_bytes_ = scratch_bytes_ * static_cast<size_t>(num_threads);
  scratch_ = static_cast<uint8_t*>(reserve_memory(mapped_bytes_));
}

Drawing::~Drawing() { unmap_memory(scratch_, mapped_bytes_); }

void Drawing::set_row(int64_t row, DrawParameters parameters) {
  require(row >= 0 && row < static_cast<int64_t>(parameters_.size()), "no such row");
  const auto known = [this](int32_t id) { return id >= 0 && id < vocab_size_; };
  require(std::all_of(parameters.bias_ids.begin(), parameters.bias_ids.end(), known),
          "logit_bias names a token outside the vocabulary");
  require(parameters.bias_ids.size() == parameters.biases.size(), "logit_bias: a value a token");
  auto& ends = parameters.end_token_ids;  // one beyond the logits can never be drawn
  ends.erase(std::remove_if(ends.begin(), ends.end(), [&](int32_t id) { return !known(id); }), ends.end());
  parameters.num_top = std::min(parameters.num_top, vocab_size_);
  parameters_[static_cast<size_t>(row)] = std::move(parameters);
}

void Drawing::begin(const TokenTable& tokens, const std::vector<int32_t>& rows, const std::vector<int32_t>& num_samples,
                    std::vector<const uint32_t*> allowed, std::vector<PromptQuery> queries, float* logits) {
  require(rows.size() == num_samples.size(), "num_samples: an entry a row that draws");
  require(allowed.empty() || allowed.size() == rows.size(), "allowed: an entry a row that draws");
  tokens_ = tokens;
  rows_ = rows;
  num_samples_ = num_samples;
  allowed_ = std::move(allowed);
  queries_ = std::move(queries);
  logits_ = logits;
  max_top_ = 0;
  any_logprobs_ = !queries_.empty();
  first_sample_.clear();
  size_t total = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    require(rows_[i] >= 0 && rows_[i] < static_cast<int64_t>(parameters_.size()) && rows_[i] < tokens.num_rows,
            "no such row");
    require(num_samples_[i] >= 1, "a row that draws draws at least one token");
    const int64_t known = tokens.num_tokens[rows_[i]];
    require(known >= 0 && known <= tokens.stride, "a row knows more tokens than it holds");
    first_sample_.push_back(total);
    total += static_cast<size_t>(num_samples_[i]);
    const int64_t num_top = parameters_[static_cast<size_t>(rows_[i])].num_top;
    max_top_ = std::max(max_top_, num_top);
    any_logprobs_ = any_logprobs_ || num_top >= 0;
  }
  for (PromptQuery& query : queries_) {
    require(query.target >= 0 && query.target < vocab_size_, "a prompt token lies outside the vocabulary");
    query.num_top = static_cast<int32_t>(std::min<int64_t>(query.num_top, vocab_size_));
    max_top_ = std::max<int64_t>(max_top_, query.num_top);
  }
  const size_t items = rows_.size() + queries_.size();
  token_ids_.assign(total, 0);
  statuses_.assign(items, 0);
  logprobs_.assign(any_logprobs_ ? total + queries_.size() : 0, 0.0f);
  top_ids_.assign(items * static_cast<size_t>(max_top_), -1);
  top_logprobs_.assign(items * static_cast<size_t>(max_top_), 0.0f);
}

bool Drawing::any_failed() const {
  return std::any_of(statuses_.begin(), statuses_.end(), [](uint8_t status) { return status != 0; });
}

void Drawing::take(int64_t index, const float* logits, int thread) noexcept {
  if (index < static_cast<int64_t>(rows_.size())) {
    draw(index, logits, scratch_ + static_cast<size_t>(thread) * scratch_bytes_);
  } else {
    query(index, logits);
  }
}

void Drawing::draw(int64_t index, const float* logits, void* scratch) noexcept {
  const size_t i = static_cast<size_t>(index);
  const DrawParameters& p = parameters_[static_cast<size_t>(rows_[i])];
  SampleRow row{};
  row.logits = logits;
  row.temperature = p.temperature;
  row.top_p = p.top_p;
  row.min_p = p.min_p;
  row.top_k = p.top_k;
  row.repetition_penalty = p.repetition_penalty;
  row.frequency_penalty = p.frequency_penalty;
  row.presence_penalty = p.presence_penalty;
  row.token_ids = tokens_.token_ids + rows_[i] * tokens_.stride;
  row.num_tokens = tokens_.num_tokens[rows_[i]];
  row.num_prompt_tokens = p.num_prompt_tokens;
  row.bias_ids = p.bias_ids.data();
  row.biases = p.biases.data();
  row.num_biases = static_cast<int64_t>(p.bias_ids.size());
  if (row.num_tokens - p.num_prompt_tokens < p.min_tokens) {
    row.masked_ids = p.end_token_ids.data();
    row.num_masked = static_cast<int64_t>(p.end_token_ids.size());
  }
  if (!allowed_.empty()) row.allowed = allowed_[i];
  row.seed = p.seed;
  row.position = static_cast<uint32_t>(row.num_tokens);
  row.sample_index = p.sample_index;
  row.num_samples = num_samples_[i];
  row.num_top = p.num_top;
  const size_t top = i * static_cast<size_t>(max_top_);
  const SampleOut out{token_ids_.data() + first_sample_[i],
                      any_logprobs_ ? logprobs_.data() + first_sample_[i] : nullptr, top_ids_.data() + top,
                      top_logprobs_.data() + top};
  const SampleStatus status = kernels_.sample(row, vocab_size_, scratch, out);
  statuses_[i] = static_cast<uint8_t>(status);
  if (status != SampleStatus::kOk) std::fill_n(out.token_ids, num_samples_[i], 0);
  if (logits_ != nullptr) {
    std::memcpy(logits_ + index * vocab_size_, logits, static_cast<size_t>(vocab_size_) * sizeof(float));
  }
}

void Drawing::query(int64_t index, const float* logits) noexcept {
  const size_t i = static_cast<size_t>(index), top = i * static_cast<size_t>(max_top_);
  const PromptQuery& query = queries_[i - rows_.size()];
  float* logprob = logprobs_.data() + token_ids_.size() + (i - rows_.size());
  statuses_[i] = static_cast<uint8_t>(kernels_.token_logprobs(logits, vocab_size_, &query.target, 1, logprob,
                                                              query.num_top, top_ids_.data() + top,
                                                              top_logprobs_.data() + top));
}

}  // namespace octavo

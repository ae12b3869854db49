// Runs a program over one step: the forward pass of all its tokens, then the head and what is made of its logits.
//
// Nothing is allocated in a step once the largest has been seen. What is computed for a token depends on that token's
// inputs and KV only; the number of threads and of rows decides who computes it, never how.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "attend_schedule.h"
#include "program.h"
#include "thread_pool.h"

namespace octavo {

// T tokens of R sequences, as in executors/rows.py.
struct StepArrays {
  int64_t num_tokens;
  int64_t num_seqs;
  const int32_t* row_ids;
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* query_start;
  const int32_t* seq_lens;
  std::vector<const int64_t*> slots;         // a KV group
  std::vector<const int32_t*> block_tables;  // a KV group: [rows, table_stride]
  int64_t table_stride;
  int64_t table_rows;
};

// What is made of a wanted row's logits; called from any thread, for different rows at once.
class HeadConsumer {
 public:
  virtual ~HeadConsumer() = default;
  // `index`: place in the list of wanted rows; `logits` [vocab_size]; `thread`: for scratch.
  virtual void take(int64_t index, const float* logits, int thread) noexcept = 0;
};

class Runner {
 public:
  // The arena, the pool and the program must outlive the runner. Throws std::invalid_argument where the arena was made
  // for other heads or fewer layers than the program's.
  Runner(const Program& program, Arena& arena, ThreadPool& pool, int64_t max_model_len);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  int num_threads() const { return pool_.size(); }
  int64_t vocab_size() const { return program_.width(program_.output()); }

  // `wanted`: tokens of the step whose logits are wanted. Throws std::invalid_argument for arrays that point outside
  // the arena or the vocabulary, having run nothing.
  void run(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer);

  // Whether sequences that begin with the same blocks are served together (they are); results are the same bits.
  void share_prefixes(bool share) { share_prefixes_ = share; }
  // Query tokens so far that were served together with those of another sequence.
  int64_t shared_queries() const { return shared_queries_; }

  // Between steps: the memory of activations goes back to the system, and the next step takes what it needs again.
  void trim() noexcept;

 private:
  void check(const StepArrays& step, const std::vector<int32_t>& wanted) const;
  void run_stages(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer, int thread);
  void make_rope_tables(const StepArrays& step, Share rows);
  void run_rows(const Stage& stage, const StepArrays& step, const int32_t* chosen, Share rows);
  void run_row_op(const Op& op, const StepArrays& step, const int32_t* chosen, Share rows);
  void run_linear(const Stage& stage, int64_t num_rows, int thread);
  void run_attend(const Op& op, const StepArrays& step, int thread);
  StepQueries queries_of(const StepArrays& step, int group) const;
  void schedule_attention(const StepArrays& step);

  float* row(int buffer, int64_t index) const {
    return reinterpret_cast<float*>(workspace_ + program_.offset(buffer)) + index * program_.stride(buffer);
  }

  const Program& program_;
  const Kernels& kernels_;
  Arena& arena_;
  ThreadPool& pool_;
  int64_t num_token_ids_;  // rows of the embedding
  int64_t max_model_len_;
  size_t num_groups_ = 0;
  uint8_t* workspace_ = nullptr;
  uint8_t* rounded_ = nullptr;
  uint8_t* scratch_ = nullptr;  // one piece a thread
  float* partials_ = nullptr;
  size_t scratch_bytes_ = 0, partial_bytes_ = 0;
  bool share_prefixes_ = true;
  int64_t shared_queries_ = 0;
  std::vector<AttendSchedule> schedules_;
  std::vector<std::vector<float>> cos_, sin_;  // [max_tokens][pairs] a rope
};

}  // namespace octavo

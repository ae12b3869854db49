// Runs a program over one step: the forward pass of all its tokens, then the head and what is made of its logits.
//
// Between two attentions the stages of a segment run in one of two ways:
//
//   blocks    many rows: each thread takes blocks of rows through all stages alone, and all meet at the segment's end
//   together  few rows: all threads share each stage, products by panels, and meet behind it. What a stage of very few
//             rows makes for the product behind it each thread makes for itself, which is less work than to meet
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

// Sums of the final hidden state over tokens of a step, which go on in the next step: pooling. Each sum grows by its
// tokens in the order given, in double, so that the chunks a prompt was cut into do not show in its bits.
struct HiddenSums {
  std::vector<int32_t> tokens;   // of the step
  std::vector<int32_t> entries;  // for each, the sum it is added to
  double* sums = nullptr;        // [entries, hidden_size]
  int64_t num_sums = 0;
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

  // Columns of the final hidden state; 0 where the program has none.
  int64_t hidden_size() const { return program_.hidden() < 0 ? 0 : program_.width(program_.hidden()); }

  // `wanted`: tokens of the step whose logits are wanted; `hidden`: those whose hidden state is. Throws
  // std::invalid_argument for arrays that point outside the arena or the vocabulary, having run nothing.
  void run(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer, const HiddenSums& hidden);

  // Whether sequences that begin with the same blocks are served together (they are); results are the same bits.
  void share_prefixes(bool share) { share_prefixes_ = share; }
  // Query tokens so far that were served together with those of another sequence.
  int64_t shared_queries() const { return shared_queries_; }

  // Between steps: the memory of activations goes back to the system, and the next step takes what it needs again.
  void trim() noexcept;

 private:
  void check(const StepArrays& step, const std::vector<int32_t>& wanted) const;
  void check(const StepArrays& step, const HiddenSums& hidden) const;
  void run_stages(const StepArrays& step, const std::vector<int32_t>& wanted, HeadConsumer& consumer,
                  const HiddenSums& hidden, int thread);
  void sum_hidden(const Stage* head, const StepArrays& step, const HiddenSums& hidden, int thread);
  void make_rope_tables(const StepArrays& step, Share rows);

  // Rows of the step, or of the head's batch, that a stage runs for; `arena`: what of them a thread has for itself.
  struct Block {
    enum class Alone : uint8_t { kNothing, kOwn, kAll };  // which kBlock buffers lie in the arena
    Share rows;
    Alone alone = Alone::kNothing;
    uint8_t* arena = nullptr;
    const int32_t* chosen = nullptr;  // head: tokens of the step
  };
  // What of a product a thread computes.
  struct Part {
    Share panels;
    Share rows;
  };

  void run_in_blocks(const Stage* begin, const Stage* end, const StepArrays& step, int thread);
  // `may_own`: what a stage of few rows makes may stay with the thread that made it.
  void run_together(const Stage* begin, const Stage* end, const StepArrays& step, int64_t num_rows,
                    const int32_t* chosen, int thread, bool may_own = true);
  void meet(const Stage* next, const Stage* end, int64_t num_rows, int thread);
  Part part_of(const Stage& stage, int64_t num_rows, int thread) const;
  void run_rows(const Stage& stage, const StepArrays& step, const Block& block);
  void run_row_op(const Op& op, const StepArrays& step, const Block& block, Share rows);
  void run_linear(const Stage& stage, const Block& block, Part part);
  void run_attend(const Op& op, const StepArrays& step, int thread);
  StepQueries queries_of(const StepArrays& step, int group) const;
  void schedule_attention(const StepArrays& step);

  float* row(int buffer, int64_t index, const Block& block) const {
    const Place place = program_.place(buffer);
    const bool alone = block.alone == Block::Alone::kAll ? place.scope == Scope::kBlock
                                                         : block.alone == Block::Alone::kOwn && place.own;
    if (!alone) return reinterpret_cast<float*>(workspace_ + place.offset) + index * place.stride;
    return reinterpret_cast<float*>(block.arena + place.arena_offset) + (index - block.rows.begin) * place.stride;
  }
  uint8_t* rounded(const Rounding& rounding, int64_t index, const Block& block) const;
  uint8_t* arena(int thread) const { return arenas_ + static_cast<size_t>(thread) * program_.arena_bytes(); }

  const Program& program_;
  const Kernels& kernels_;
  Arena& arena_;
  ThreadPool& pool_;
  int64_t num_token_ids_;  // rows of the embedding
  int64_t shared_rows_;    // that the memory of rounded rows has
  int64_t max_model_len_;
  size_t num_groups_ = 0;
  uint8_t* workspace_ = nullptr;
  uint8_t* rounded_ = nullptr;
  uint8_t* arenas_ = nullptr;   // one a thread
  uint8_t* scratch_ = nullptr;  // one piece a thread
  float* partials_ = nullptr;
  bool share_prefixes_ = true;
  int64_t shared_queries_ = 0;
  size_t rounded_bytes_ = 0, arenas_bytes_ = 0, scratch_bytes_ = 0, partial_bytes_ = 0;
  std::vector<AttendSchedule> schedules_;
  std::vector<std::vector<float>> cos_, sin_;  // [max_tokens][pairs] a rope
};

}  // namespace octavo

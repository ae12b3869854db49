// A fixed team of threads that runs one program at a time, in step.
//
// Work is split by the threads' numbers, never by who comes first, so that results do not depend on timing. Waiting
// spins for tens of microseconds and then sleeps, so that a busy neighbour or a CPU quota does not stall the team.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace octavo {

class ThreadPool {
 public:
  // The caller's thread is one of them. Throws std::invalid_argument below 1, std::system_error where the system gives
  // no more threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // body(thread) on every thread, thread 0 being the caller; returns when all are done. The body must not throw. Not
  // reentrant: one caller at a time.
  template <class Body>
  void run(const Body& body) {
    run_task([](const void* context, int thread) { (*static_cast<const Body*>(context))(thread); }, &body);
  }

  // To be called inside `run` by every thread equally often, with its number: none goes on before all have come.
  void barrier(int thread);

 private:
  using Task = void (*)(const void* context, int thread);

  void run_task(Task task, const void* context);
  void work(int thread);
  void stop();
  void wait_until_not(std::atomic<uint32_t>& word, uint32_t value);
  void advance(std::atomic<uint32_t>& word);

  const int num_threads_;
  struct alignas(64) Arrivals {
    std::atomic<uint32_t> count{0};
  };

  alignas(64) std::atomic<uint32_t> epoch_{0};  // grows with each run
  std::vector<Arrivals> arrivals_;              // a thread: grows with each barrier it comes to
  alignas(64) std::atomic<int> sleepers_{0};
  Task task_ = nullptr;
  const void* context_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// The share of [0, count) that falls to `thread` of `num_threads`: contiguous, in order, even to one.
struct Share {
  int64_t begin;
  int64_t end;
};
constexpr Share share_of(int64_t count, int thread, int num_threads) {
  return {count * thread / num_threads, count * (thread + 1) / num_threads};
}

}  // namespace octavo

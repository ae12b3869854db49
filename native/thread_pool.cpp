#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace octavo {

namespace {

constexpr auto kSpinTime = std::chrono::microseconds(60);
constexpr int kSpinsPerClockRead = 64;

inline void pause_spinning() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#if defined(__linux__)

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

#else

struct Sleepers {
  std::mutex mutex;
  std::condition_variable changed;
};
Sleepers& sleepers() {
  static Sleepers instance;
  return instance;
}
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  std::unique_lock<std::mutex> lock(sleepers().mutex);
  sleepers().changed.wait(lock, [&] { return word.load() != value; });
}
void wake_all(std::atomic<uint32_t>&) {
  { const std::lock_guard<std::mutex> lock(sleepers().mutex); }
  sleepers().changed.notify_all();
}

#endif

}  // namespace

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), arrivals_(static_cast<size_t>(std::max(num_threads, 0))) {
  if (num_threads < 1) throw std::invalid_argument("a thread pool needs at least one thread");
  try {
    for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { work(thread); });
  } catch (...) {  // the system gives no more threads: those that run must end before the vector goes
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_ = true;
  advance(epoch_);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_task(Task task, const void* context) {
  task_ = task;
  context_ = context;
  advance(epoch_);
  task(context, 0);
  barrier(0);
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    wait_until_not(epoch_, seen);
    if (stopping_) return;
    task_(context_, thread);
    barrier(thread);
  }
}

// Each counts its own arrivals, in a line that only it writes, and looks at everybody else's: the news of the last one to
// come travels once. Another may be one barrier ahead when it is looked at, never less than this one.
void ThreadPool::barrier(int thread) {
  if (num_threads_ == 1) return;
  std::atomic<uint32_t>& own = arrivals_[static_cast<size_t>(thread)].count;
  const uint32_t before = own.load(std::memory_order_relaxed);
  advance(own);
  for (int other = 0; other < num_threads_; ++other) {
    if (other != thread) wait_until_not(arrivals_[static_cast<size_t>(other)].count, before);
  }
}

// The store and the look at sleepers_ are ordered against the sleeper's count and its look at the word: either the
// sleeper sees the new value, or it is counted here and woken.
void ThreadPool::advance(std::atomic<uint32_t>& word) {
  word.store(word.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(word);
}

void ThreadPool::wait_until_not(std::atomic<uint32_t>& word, uint32_t value) {
  if (word.load(std::memory_order_acquire) != value) return;
  const auto started = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) != value) return;
      pause_spinning();
    }
  } while (std::chrono::steady_clock::now() - started < kSpinTime);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == value) sleep_while(word, value);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace octavo

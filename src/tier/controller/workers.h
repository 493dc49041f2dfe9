// Threads that run short jobs, in the order in which they were added.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cachalot::tier {

// @threads any
class Workers {
 public:
  using Job = std::function<void()>;

  explicit Workers(std::uint32_t threads);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  // Runs all jobs that were added, then ends the threads.
  ~Workers();

  void add(Job job);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cachalot::tier

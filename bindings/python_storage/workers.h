// The threads that enter Python: callers of Cachalot never do, so that a class that hangs, with or without the
// interpreter's lock, costs a caller its deadline and nothing more.
//
// A hanging class keeps at most `threads` of them. Further calls wait in the queue until their deadline, which
// removes them.
//
// @threads any
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "call.h"

namespace cachalot::python_storage {

class Workers : public std::enable_shared_from_this<Workers> {
 public:
  // The interpreter is running (interpreter.h).
  static std::shared_ptr<Workers> start(std::size_t threads);

  // Has a worker execute the call, and waits for it until the deadline.
  Outcome run(const std::shared_ptr<Call>& call, std::uint64_t deadline_ns);

  // Ends the threads. One that hangs in Python ends after it has come back: it holds only what it owns.
  // @return whether all have ended before the deadline
  bool stop(std::uint64_t deadline_ns);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Call>> queue_;
  std::size_t running_ = 0;
  bool is_stopped_ = false;
};

std::uint64_t now_ns();

}  // namespace cachalot::python_storage

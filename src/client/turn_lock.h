// The lock of a session: can be waited for until a deadline.
#pragma once

#include <cachalot/client.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace cachalot::client {

// The time at which a call must be finished.
class Deadline {
 public:
  static Deadline after(std::uint64_t timeout_ns);
  bool is_over() const;
  // @errors kTimeout, if it is over
  Status check(const char* what) const;
  // By the clock of pool::PoolClient; kNoTimeout: never.
  std::uint64_t at_ns() const { return at_ns_; }

 private:
  std::uint64_t at_ns_ = kNoTimeout;
};

// @threads any
class TurnLock {
 public:
  // @return false: the deadline has passed
  bool lock(const Deadline& deadline);
  bool try_lock();
  void unlock();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_taken_ = false;
};

}  // namespace cachalot::client

// The memory that one side of a transfer reads or writes, and the promise that nothing touches it after it was left.
//
// 1. Memory is touched only between enter() and leave().
// 2. After close() has returned, nothing is between enter() and leave(), and nothing enters again.
// 3. A socket is inside within one system call. Another transport may stay inside while its library moves the bytes,
//    from one call of progress() to a later one: only the progress thread gets it out. There, and with a lock that
//    the progress thread takes, close() must not block: use close_later().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

class PayloadMemory {
 public:
  explicit PayloadMemory(ByteStream stream) : stream_(std::move(stream)) {}
  PayloadMemory(const PayloadMemory&) = delete;
  PayloadMemory& operator=(const PayloadMemory&) = delete;

  const ByteStream& stream() const { return stream_; }

  // @return false: closed, the memory belongs to its owner again
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return false;
    ++users_;
    return true;
  }
  void leave() {
    std::function<void()> left;
    {
      const std::lock_guard lock(mutex_);
      if (--users_ > 0 || !is_closed_) return;
      left_.notify_all();
      left.swap(when_left_);
    }
    if (left) left();
  }
  // Blocks while something is inside.
  void close() {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    left_.wait(lock, [this] { return users_ == 0; });
  }
  // Never blocks. @return whether nothing is inside now. If not, the last leave() calls `left`, in its thread.
  bool close_later(std::function<void()> left) {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    if (users_ == 0) return true;
    when_left_ = std::move(left);
    return false;
  }
  bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return is_closed_;
  }

 private:
  const ByteStream stream_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::function<void()> when_left_;
  std::uint32_t users_ = 0;
  bool is_closed_ = false;
};

}  // namespace cachalot::transfer

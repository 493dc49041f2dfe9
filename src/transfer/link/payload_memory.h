// The memory that one side of a transfer reads or writes, and the promise that nothing touches it after it was left.
//
// 1. Memory is touched only between enter() and leave().
// 2. After close() has returned, nothing is between enter() and leave(), and nothing enters again.
// 3. A transport is inside within one system call or one copy: close() blocks for no longer.
#pragma once

#include <condition_variable>
#include <cstdint>
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
    const std::lock_guard lock(mutex_);
    if (--users_ == 0 && is_closed_) left_.notify_all();
  }
  // Blocks while something is inside.
  void close() {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    left_.wait(lock, [this] { return users_ == 0; });
  }
  bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return is_closed_;
  }

 private:
  const ByteStream stream_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::uint32_t users_ = 0;
  bool is_closed_ = false;
};

}  // namespace cachalot::transfer

// A gate for calls. close() rejects new calls and waits until all calls have left. It makes detach() safe
// while other threads are inside calls.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::python {

class CallGate {
 public:
  class Visit {
   public:
    explicit Visit(CallGate& gate) : gate_(gate), is_in_(gate.enter()) {}
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    ~Visit() {
      if (is_in_) gate_.leave();
    }
    explicit operator bool() const { return is_in_; }

   private:
    CallGate& gate_;
    const bool is_in_;
  };

  void close() {
    std::uint32_t state = state_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
    while (state != kClosed) {  // acquire: pairs with the release in leave()
      state_.wait(state, std::memory_order_acquire);
      state = state_.load(std::memory_order_acquire);
    }
  }
  void open() { state_.fetch_and(~kClosed, std::memory_order_release); }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;

  bool enter() {
    if ((state_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) return true;
    leave();
    return false;
  }
  void leave() {
    // Only close() waits, and only for the last call.
    if (state_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) state_.notify_all();
  }

  std::atomic<std::uint32_t> state_{0};  // number of calls inside, and the closed bit
};

}  // namespace cachalot::python

// How many chunks this process may have of a device, one credit each.
//
//   budget         | whose
//   LocalBudget    | a number for this process alone
//   SharedBudget   | a file that several processes map: what one does not use, another may borrow
//
// 1. The owner of a chunk's physical memory has a credit for it: taken before the memory is created, given
//    back after it was released.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::vtensor {

class ChunkBudget {
 public:
  virtual ~ChunkBudget() = default;

  // All or nothing. @return how many there were: fewer than `wanted`, and none was taken
  virtual std::uint64_t take(std::uint64_t wanted) = 0;
  virtual void give(std::uint64_t credits) = 0;

  // So many are wanted: asks the others for what is not free of them, as far as they have borrowed it.
  // It comes later, if at all.
  virtual void ask(std::uint64_t /*wanted*/) {}
  // What this process still lacks of its guarantee: of this much it may ask before it gives up
  // anything of its own.
  virtual std::uint64_t owed() const { return 0; }
  // What others ask this process for, of what it has beyond its guarantee.
  virtual std::uint64_t asked() const { return 0; }
  // Waits until others have asked again since the call that returned `seen`.
  // @return another number; 0 immediately where no process can ask, and after stop_waiting()
  virtual std::uint32_t wait_asked(std::uint32_t /*seen*/) { return 0; }
  virtual void stop_waiting() {}  // for good
};

class LocalBudget final : public ChunkBudget {
 public:
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
  explicit LocalBudget(std::uint64_t chunks = kNoLimit) : left_(chunks) {}

  // relaxed: the number guards no other memory.
  std::uint64_t take(std::uint64_t wanted) override {
    std::uint64_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left < wanted) return left;
    } while (!left_.compare_exchange_weak(left, left - wanted, std::memory_order_relaxed));
    return wanted;
  }
  void give(std::uint64_t credits) override { left_.fetch_add(credits, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> left_;
};

}  // namespace cachalot::vtensor

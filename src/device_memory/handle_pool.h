// Handles of one size that are there before they are needed. Creating one costs 0.1 ms on CPU memory
// and up to 0.2 ms on a GPU, mapping one a few microseconds: so no create happens while a request waits.
// A thread fills the pool in the background.
//
// 1. Below the low mark the thread begins, at the high mark it rests. It also rests when the device is
//    full, until the next take(): it does not ask over and over.
// 2. First in, first out: handles created in a row are taken in a row, and lie in a row (memfd).
// 3. A ready handle is mapped nowhere, and counts as physical memory.
// 4. When the pool is gone, so are its thread and its ready handles; those that were taken are their
//    takers'.
//
// @threads any
// @cost    take, give_back: 0.1 us; take from an empty pool: a create
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "device_memory/backend.h"

namespace cachalot::device_memory {

struct HandlePoolOptions {
  std::uint64_t handle_bytes = std::uint64_t{2} << 20;
  std::uint64_t low_handles = 16;
  std::uint64_t high_handles = 64;  // 0: nothing is kept, every take() creates
};

struct HandlePoolCounts {
  std::uint64_t taken_ready = 0;    // without a call of the driver
  std::uint64_t taken_created = 0;  // the pool was empty
  std::uint64_t filled = 0;         // by the thread
  std::uint64_t kept = 0;           // given back and kept
  std::uint64_t released = 0;       // given back to a full pool, or trimmed
  std::uint64_t failed_fills = 0;   // how often the thread met a full device
};

class HandlePool {
 public:
  // @param  backend  must outlive the pool
  // @errors kInvalidArgument: sizes, marks; kNoSpace: no thread to be had
  static Result<std::unique_ptr<HandlePool>> start(Backend& backend,
                                                   const HandlePoolOptions& options = {});
  ~HandlePool();
  HandlePool(const HandlePool&) = delete;
  HandlePool& operator=(const HandlePool&) = delete;

  // @errors as Backend::create
  Result<Handle> take();
  // @errors kInvalidArgument: released, of another size, still mapped, or given back already
  Status give_back(Handle handle);

  // Waits until the thread rests.
  void wait_until_filled();

  std::uint64_t handle_bytes() const { return options_.handle_bytes; }
  std::uint64_t ready() const;
  HandlePoolCounts counts() const;

 private:
  HandlePool(Backend& backend, const HandlePoolOptions& options)
      : backend_(backend), options_(options) {}
  void fill();
  // With the lock held.
  void wake_below_low_mark();
  void put(Handle handle);
  Handle take_ready();

  Backend& backend_;
  const HandlePoolOptions options_;
  mutable std::mutex mutex_;  // of all below but the thread
  std::condition_variable work_, rest_;
  std::deque<Handle> ready_;                    // oldest first
  std::unordered_set<std::uint64_t> is_ready_;  // the same: a handle must not have two takers
  HandlePoolCounts counts_;
  bool filling_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cachalot::device_memory

// What the allocators have in common: the table of what users hold, frees that wait for other
// streams, statistics, and the lock. Where memory comes from is up to the derived class.
//
// 1. An address is in the table from allocate() to free(), and its memory is used.
// 2. A freed block that other streams used stays used until their events are done; allocate() looks
//    at the oldest such blocks first, and waits for all of them before it gives up.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "device_memory/address_map.h"
#include "device_memory/allocator.h"
#include "gpu/stream_events.h"

namespace cachalot::device_memory {

class TrackedAllocator : public Allocator {
 public:
  static constexpr std::uint64_t kRoundBytes = 512;  // and the alignment
  static constexpr std::uint64_t kMaxRequestBytes = std::uint64_t{1} << 60;

  // Both outlive the allocator.
  TrackedAllocator(Backend& backend, gpu::StreamEvents& events)
      : backend_(backend), events_(events) {}

  Result<Address> allocate(std::uint64_t bytes, gpu::StreamId stream) final;
  Status free(Address address) final;
  Status use_on(Address address, gpu::StreamId stream) final;
  Status release_cached() final;
  AllocatorStats stats() const final;
  Status check() const final;

 protected:
  // Where a request was placed. do_free() gets it back; all but the address is the derived class's.
  struct Placed {
    Address address = 0;
    void* owner = nullptr;
    std::uint32_t kind = 0;
  };

  // All of these are called with the lock held.
  virtual Result<Placed> do_allocate(std::uint64_t bytes,
                                     gpu::StreamId stream) = 0;  // a multiple of 512
  virtual void do_free(const Placed& placed) = 0;
  virtual Status do_release_cached() = 0;
  virtual Status do_check() const = 0;
  virtual std::uint64_t do_reserved_bytes() const = 0;
  virtual std::uint64_t do_used_bytes() const = 0;  // in blocks that are handed out

  // Until all work is done that any stream has by now: before memory that it may touch is unmapped.
  Status synchronize();

  // Every stream that was ever named.
  const std::vector<gpu::StreamId>& streams() const { return streams_; }

  mutable std::mutex mutex_;  // of everything here and in the derived class
  Backend& backend_;
  gpu::StreamEvents& events_;
  AllocatorStats stats_;

 private:
  struct Held {
    Placed placed;
    std::uint64_t bytes = 0;
    gpu::StreamId stream = 0;
    std::vector<gpu::StreamId> others;
  };
  struct Pending {
    Placed placed;
    std::vector<gpu::StreamEvents::Event> events;
  };

  Result<Placed> place(std::uint64_t bytes, gpu::StreamId stream);
  void note_stream(gpu::StreamId stream);
  void free_what_is_done();
  Status wait_for_pending();

  AddressMap<Held> held_;
  std::deque<Pending> pending_;
  std::vector<gpu::StreamId> streams_;
};

}  // namespace cachalot::device_memory

#include "device_memory/tracked_allocator.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::device_memory {

Result<Address> TrackedAllocator::allocate(std::uint64_t bytes, gpu::StreamId stream) {
  const std::scoped_lock lock(mutex_);
  if (bytes > kMaxRequestBytes) {
    ++stats_.out_of_memory;
    return Error::make(Code::kNoSpace, "allocate: %" PRIu64 " bytes, expected at most %" PRIu64,
                       bytes, kMaxRequestBytes);
  }
  const std::uint64_t rounded = std::max(bytes + kRoundBytes - 1, kRoundBytes) & ~(kRoundBytes - 1);
  note_stream(stream);
  const std::uint64_t driver_allocations = stats_.driver_allocations;
  Result<Placed> placed = place(rounded, stream);
  // A second try counts no second time, and a refused request is no allocation.
  stats_.driver_allocations =
      std::min(stats_.driver_allocations, driver_allocations + (placed ? 1u : 0u));
  stats_.reserved_bytes = do_reserved_bytes();
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  if (!placed) {
    stats_.out_of_memory += placed.error().code == Code::kNoSpace;
    return placed.error();
  }
  held_.insert(placed->address, Held{*placed, bytes, stream, {}});
  ++stats_.allocations;
  stats_.live_bytes += bytes;
  stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
  return placed->address;
}

Result<TrackedAllocator::Placed> TrackedAllocator::place(std::uint64_t bytes,
                                                         gpu::StreamId stream) {
  if (!pending_.empty()) free_what_is_done();
  Result<Placed> placed = do_allocate(bytes, stream);
  if (placed || placed.error().code != Code::kNoSpace || pending_.empty()) return placed;
  CACHALOT_TRY(wait_for_pending());
  return do_allocate(bytes, stream);
}

Status TrackedAllocator::free(Address address) {
  const std::scoped_lock lock(mutex_);
  if (held_.find(address) == nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "free: 0x%" PRIx64 ", expected an address that is allocated", address);
  }
  const Held held = held_.take(address);
  ++stats_.frees;
  stats_.live_bytes -= held.bytes;
  if (held.others.empty()) {
    do_free(held.placed);
    return {};
  }
  Pending pending{held.placed, {}};
  for (const gpu::StreamId stream : held.others) {
    Result<gpu::StreamEvents::Event> event = events_.record(stream);
    if (event) {
      pending.events.push_back(*event);
      continue;
    }
    // Without an event it is unknown when the memory is free: it stays used for good.
    for (const gpu::StreamEvents::Event recorded : pending.events) events_.drop(recorded);
    return event.error();
  }
  pending_.push_back(std::move(pending));
  return {};
}

Status TrackedAllocator::use_on(Address address, gpu::StreamId stream) {
  const std::scoped_lock lock(mutex_);
  Held* const held = held_.find(address);
  if (held == nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "use_on: 0x%" PRIx64 ", expected an address that is allocated", address);
  }
  note_stream(stream);
  std::vector<gpu::StreamId>& others = held->others;
  const bool is_known = std::find(others.begin(), others.end(), stream) != others.end();
  if (stream != held->stream && !is_known) others.push_back(stream);
  return {};
}

void TrackedAllocator::note_stream(gpu::StreamId stream) {
  if (!streams_.empty() && streams_.back() == stream) return;
  const auto known = std::find(streams_.begin(), streams_.end(), stream);
  if (known == streams_.end()) {
    streams_.push_back(stream);
    events_.note(stream);
  } else {
    std::swap(*known, streams_.back());  // likely to be asked for again
  }
}

Status TrackedAllocator::synchronize() {
  for (const gpu::StreamId stream : streams_) {
    CACHALOT_TRY_ASSIGN(const gpu::StreamEvents::Event event, events_.record(stream));
    const Status done = events_.wait(event);
    events_.drop(event);
    CACHALOT_TRY(done);
  }
  return {};
}

void TrackedAllocator::free_what_is_done() {
  while (!pending_.empty()) {
    Pending& oldest = pending_.front();
    while (!oldest.events.empty() && events_.is_done(oldest.events.back())) {
      events_.drop(oldest.events.back());
      oldest.events.pop_back();
    }
    if (!oldest.events.empty()) return;
    do_free(oldest.placed);
    pending_.pop_front();
  }
}

Status TrackedAllocator::wait_for_pending() {
  for (const Pending& each : pending_) {
    for (const gpu::StreamEvents::Event event : each.events) CACHALOT_TRY(events_.wait(event));
  }
  free_what_is_done();
  return {};
}

Status TrackedAllocator::release_cached() {
  const std::scoped_lock lock(mutex_);
  CACHALOT_TRY(wait_for_pending());
  const Status released = do_release_cached();
  stats_.reserved_bytes = do_reserved_bytes();
  return released;
}

AllocatorStats TrackedAllocator::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

Status TrackedAllocator::check() const {
  const std::scoped_lock lock(mutex_);
  std::uint64_t live = 0;
  held_.for_each([&](Address, const Held& held) { live += held.bytes; });
  if (live != stats_.live_bytes) {
    return Error::make(Code::kCorrupt, "allocator: %" PRIu64 " bytes live, the table has %" PRIu64,
                       stats_.live_bytes, live);
  }
  if (do_used_bytes() < live || do_reserved_bytes() < do_used_bytes()) {
    return Error::make(Code::kCorrupt,
                       "allocator: %" PRIu64 " live, %" PRIu64 " used, %" PRIu64
                       " reserved; expected "
                       "them to grow in this order",
                       live, do_used_bytes(), do_reserved_bytes());
  }
  return do_check();
}

}  // namespace cachalot::device_memory

#include "vtensor/chunk_store.h"

#include <algorithm>
#include <cinttypes>

#include "base/check.h"

namespace cachalot::vtensor {
namespace {

Error too_few(std::uint64_t count, std::uint64_t missing, const char* why) {
  Error error =
      Error::make(Code::kNoSpace, "chunks: %" PRIu64 " wanted, %" PRIu64 " are missing: %.150s",
                  count, missing, why);
  error.detail = missing;
  return error;
}

}  // namespace

ChunkStore::~ChunkStore() {
  give_back(ready_.size());
}

void ChunkStore::add_ready(device_memory::Handle handle) {
  if (vacant_.empty()) {
    vacant_.push_back(places_.size());
    places_.emplace_back();
  }
  places_[vacant_.back()] = {.handle = handle};
  ready_.push_back(vacant_.back());
  vacant_.pop_back();
}

// With a credit that its caller has taken.
Result<device_memory::Handle> ChunkStore::create() {
  Result<device_memory::Handle> handle = backend_.create(chunk_bytes_);
  if (!handle) budget_.give(1);
  return handle;
}

// Those that were created before one failed are in `created`, too.
Status ChunkStore::create_missing(std::uint64_t missing,
                                  std::vector<device_memory::Handle>& created) {
  const std::uint64_t credits = budget_.take(missing);
  if (credits < missing) {
    return too_few(missing, missing - credits, "the budget has no more");
  }
  for (std::uint64_t i = 0; i < missing; ++i) {
    const Result<device_memory::Handle> handle = create();
    if (!handle) {
      budget_.give(missing - i - 1);
      if (handle.error().code != Code::kNoSpace) return handle.error();
      return too_few(missing, missing - i, handle.error().message);
    }
    created.push_back(*handle);
  }
  return {};
}

Status ChunkStore::take(std::uint64_t count, std::vector<Chunk>& chunks) {
  std::unique_lock lock(mutex_);
  while (ready_.size() < count) {
    const std::uint64_t missing = count - ready_.size(), arrived = arrived_;
    lock.unlock();
    std::vector<device_memory::Handle> created;
    const Status done = create_missing(missing, created);
    lock.lock();
    for (const device_memory::Handle handle : created) add_ready(handle);
    counts_.created_late += created.size();
    if (done || arrived_ != arrived) continue;
    if (filling_ == 0 || done.error().code != Code::kNoSpace) return done;
    filled_.wait(lock, [&] { return filling_ == 0 || arrived_ != arrived; });
  }
  // The last ones, in the order in which they came: neighbours in memory stay neighbours, and the
  // kernel makes one mapping of them.
  for (std::uint64_t i = ready_.size() - count; i < ready_.size(); ++i) {
    Place& place = places_[ready_[i]];
    place.references = 1;
    chunks.push_back({.handle = place.handle, .place = ready_[i]});
  }
  ready_.resize(ready_.size() - count);
  counts_.used += count;
  counts_.references += count;
  counts_.peak_used = std::max(counts_.peak_used, counts_.used);
  return {};
}

void ChunkStore::share(std::span<const Chunk> chunks) {
  const std::lock_guard lock(mutex_);
  for (const Chunk& chunk : chunks) {
    CACHALOT_CHECK(places_[chunk.place].references != 0);
    places_[chunk.place].references += 1;
  }
  counts_.references += chunks.size();
}

std::uint64_t ChunkStore::drop(std::span<const Chunk> chunks) {
  const std::lock_guard lock(mutex_);
  std::uint64_t freed = 0;
  for (const Chunk& chunk : chunks) {
    Place& place = places_[chunk.place];
    CACHALOT_CHECK(place.references != 0 && place.handle == chunk.handle);
    if (--place.references != 0) continue;
    ready_.push_back(chunk.place);
    ++freed;
  }
  arrived_ += freed;
  counts_.used -= freed;
  counts_.references -= chunks.size();
  return freed;
}

bool ChunkStore::fill_ready(std::uint64_t count) {
  std::unique_lock lock(mutex_);
  while (ready_.size() < count) {
    filling_ += 1;
    lock.unlock();
    const bool has_credit = budget_.take(1) != 0;
    const Result<device_memory::Handle> handle =
        has_credit ? create() : Result<device_memory::Handle>(device_memory::Handle());
    lock.lock();
    filling_ -= 1;
    filled_.notify_all();
    if (!has_credit || !handle) return false;
    add_ready(*handle);
    arrived_ += 1;
  }
  return true;
}

std::uint64_t ChunkStore::give_back(std::uint64_t count) {
  std::vector<device_memory::Handle> handles;
  {
    const std::lock_guard lock(mutex_);
    while (handles.size() < count && !ready_.empty()) {
      handles.push_back(places_[ready_.back()].handle);
      places_[ready_.back()] = {};
      vacant_.push_back(ready_.back());
      ready_.pop_back();
    }
  }
  // A device that fails to take memory back still has it: its credit stays taken (invariant 1).
  std::uint64_t released = 0;
  for (const device_memory::Handle handle : handles) {
    if (backend_.release(handle)) ++released;
  }
  budget_.give(released);
  return released;
}

std::uint64_t ChunkStore::arrived() const {
  const std::lock_guard lock(mutex_);
  return arrived_;
}

ChunkCounts ChunkStore::counts() const {
  const std::lock_guard lock(mutex_);
  ChunkCounts counts = counts_;
  counts.ready = ready_.size();
  return counts;
}

}  // namespace cachalot::vtensor

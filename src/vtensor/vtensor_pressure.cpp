// What vTensors do when chunks are short, here or in another process; and the background's turns.
#include <algorithm>

#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {

// Of its guarantee it asks the others at once; beyond that, when it has nothing left to give up itself.
Status VTensorSet::take(std::uint64_t count, std::vector<Chunk>& chunks) {
  std::uint64_t asked = 0;
  for (;;) {
    const std::uint64_t arrived = store_.arrived();
    const Status taken = store_.take(count, chunks);
    if (taken || taken.error().code != Code::kNoSpace) return taken;
    const std::uint64_t wanted = count - std::min(count, store_.counts().ready);
    const std::uint64_t owed = std::min(budget_.owed(), wanted);
    if (owed > asked) budget_.ask(asked = owed);
    if (make_room(taken.error().detail) || store_.arrived() != arrived) continue;
    if (wanted > asked) budget_.ask(wanted);
    return taken;
  }
}

// @return whether it is worth trying again
bool VTensorSet::make_room(std::uint64_t chunks) {
  if (reclaim(chunks) != 0) return true;
  std::unique_lock lock(mutex_);
  if (unmapping_ == 0) return false;
  turn_over_.wait(lock, [&] { return unmapping_ == 0; });
  return true;
}

std::uint64_t VTensorSet::reclaim(std::uint64_t chunks) {
  std::uint64_t freed = 0;
  while (freed < chunks && (unmap_one_idle(freed) || evict_one_prefix(freed))) {
  }
  return freed;
}

bool VTensorSet::unmap_one_idle(std::uint64_t& freed) {
  VTensor* vtensor = nullptr;
  {
    const std::lock_guard lock(mutex_);
    vtensor = idle_.take_oldest();
    if (vtensor == nullptr) return false;
    vtensor->busy_ = true;
    unmapping_ += 1;
  }
  std::vector<Chunk> chunks;
  Status unmapped;
  {
    const Turn turn(*this, *vtensor, Turn::Taken{});
    unmapped = vtensor->planes_.truncate(0, chunks);
    if (unmapped) vtensor->shared_tokens_ = 0;
  }
  freed += store_.drop(chunks);
  {
    const std::lock_guard lock(mutex_);
    unmapping_ -= 1;
    fill_rests_ = false;
    if (unmapped) {
      idle_.add(vtensor);
    } else {
      stuck_.push_back(vtensor);
    }
  }
  turn_over_.notify_all();
  return true;
}

bool VTensorSet::evict_one_prefix(std::uint64_t& freed) {
  const std::lock_guard lock(mutex_);
  const auto references = prefixes_.evict();
  if (!references) return false;
  stats_.evicted_blocks += 1;
  fill_rests_ = false;
  freed += store_.drop(*references);
  return true;
}

// More than options_ allow, or what no request can use as it is.
bool VTensorSet::trim_one() {
  {
    const std::lock_guard lock(mutex_);
    if (!has_to_trim()) return false;
  }
  std::uint64_t freed = 0;
  return unmap_one_idle(freed);
}

bool VTensorSet::has_to_trim() const {
  return idle_.chunks() > options_.idle_chunks || idle_.has_unusable();
}

bool VTensorSet::has_to_fill() const {
  return !fill_rests_ && store_.counts().ready < options_.ready_chunks && budget_.asked() == 0;
}

bool VTensorSet::fill_one() {
  {
    const std::lock_guard lock(mutex_);
    if (!has_to_fill()) return false;
    fill_rests_ = true;  // before it is known: what comes back meanwhile says otherwise, and counts
  }
  if (!store_.fill_ready(std::min(store_.counts().ready + 1, options_.ready_chunks))) return false;
  const std::lock_guard lock(mutex_);
  fill_rests_ = false;
  return true;
}

// Gives back what others ask for, as far as no request needs it.
bool VTensorSet::answer_asks() {
  const std::uint64_t asked = budget_.asked();
  if (asked == 0) return false;
  {
    const std::lock_guard lock(mutex_);
    if (asks_rest_) return false;
    asks_rest_ = true;  // as in fill_one()
  }
  std::uint64_t given = store_.give_back(asked);
  while (given < asked && reclaim(asked - given) != 0) given += store_.give_back(asked - given);
  if (given >= asked) {
    const std::lock_guard lock(mutex_);
    asks_rest_ = false;
    return true;
  }
  const std::uint64_t left = budget_.asked();
  if (left != 0 && options_.on_pressure) options_.on_pressure(left);
  return true;
}

// The next step's chunks first; memory for others before memory in reserve.
VTensorSet::Work VTensorSet::work_once() {
  if (grow_one()) return Work::kGrew;
  if (answer_asks()) return Work::kAnswered;
  if (trim_one()) return Work::kTrimmed;
  if (fill_one()) return Work::kFilled;
  return Work::kNone;
}

bool VTensorSet::has_work() const {
  return next_queued() != nullptr || has_to_trim() || has_to_fill() ||
         (!asks_rest_ && budget_.asked() != 0);
}

void VTensorSet::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stop_ || has_work(); });
      if (stop_) return;
    }
    static_cast<void>(work_once());
  }
}

void VTensorSet::watch() {
  std::uint32_t seen = 0;
  while ((seen = budget_.wait_asked(seen)) != 0) {
    {
      const std::lock_guard lock(mutex_);
      asks_rest_ = false;
    }
    work_.notify_one();
  }
}

}  // namespace cachalot::vtensor

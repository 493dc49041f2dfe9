// How vTensors get more memory: by their owner, or one step ahead by the background.
#include <algorithm>
#include <cinttypes>

#include "base/clock.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {

// Called with the turn held.
Status VTensorSet::grow(VTensor& vtensor, std::uint64_t tokens) {
  PlaneChunks more{.counts = vtensor.planes_.missing(tokens), .chunks = {}};
  std::uint64_t count = 0;
  for (const std::uint64_t each : more.counts) count += each;
  if (count != 0) CACHALOT_TRY(take(count, more.chunks));
  std::vector<Chunk> unused;
  const Status done = vtensor.planes_.append(more, device_memory::Access::kReadWrite, unused);
  store_.drop(unused);
  return done;
}

Status VTensorSet::extend(VTensor& vtensor, std::uint64_t tokens) {
  if (tokens <= vtensor.ready_tokens()) return {};
  CACHALOT_TRY(check_tokens(tokens, vtensor.max_tokens()));
  const Turn turn(*this, vtensor);
  return grow(vtensor, tokens);
}

Status VTensorSet::wait_ready(VTensor& vtensor, std::uint64_t tokens) {
  if (tokens <= vtensor.ready_tokens()) return {};
  CACHALOT_TRY(check_tokens(tokens, vtensor.max_tokens()));
  const std::uint64_t begin_ns = base::SteadyClock::read();
  const Status done = extend(vtensor, tokens);
  const std::lock_guard lock(mutex_);
  stats_.waits += 1;
  stats_.wait_ns += base::SteadyClock::read() - begin_ns;
  return done;
}

void VTensorSet::prepare(VTensor& vtensor, std::uint64_t tokens) {
  const std::uint64_t wanted = std::min(tokens, vtensor.max_tokens());
  if (wanted <= vtensor.ready_tokens()) return;
  {
    const std::lock_guard lock(mutex_);
    vtensor.wanted_tokens_ = wanted;
    if (!vtensor.is_queued_) queue_.push_back(&vtensor);
    vtensor.is_queued_ = true;
  }
  work_.notify_one();
}

Status VTensorSet::shrink(VTensor& vtensor, std::uint64_t tokens) {
  tokens = std::min(tokens, layout_.max_tokens());  // what is computed below does not overflow
  const Turn turn(*this, vtensor);
  if (tokens != 0 && tokens < vtensor.shared_tokens_) {
    return Error::make(Code::kInvalidArgument,
                       "vtensor: shrinking to %" PRIu64
                       " tokens, expected 0, or no less than the %" PRIu64 " that are shared",
                       tokens, vtensor.shared_tokens_);
  }
  {
    const std::lock_guard lock(mutex_);
    unqueue(vtensor);
  }
  std::vector<Chunk> freed;
  const Status done = vtensor.planes_.truncate(tokens, freed);
  store_.drop(freed);
  if (done && tokens == 0) forget_sharing(vtensor);
  const std::lock_guard lock(mutex_);
  asks_rest_ = fill_rests_ = false;
  return done;
}

VTensor* VTensorSet::next_queued() const {
  const auto free =
      std::find_if(queue_.begin(), queue_.end(), [](const VTensor* each) { return !each->busy_; });
  return free == queue_.end() ? nullptr : *free;
}

void VTensorSet::unqueue(VTensor& vtensor) {
  if (!vtensor.is_queued_) return;
  vtensor.is_queued_ = false;
  queue_.erase(std::find(queue_.begin(), queue_.end(), &vtensor));
}

// What goes wrong here goes wrong in its owner's wait_ready() again, and is said there.
bool VTensorSet::grow_one() {
  VTensor* vtensor = nullptr;
  std::uint64_t tokens = 0;
  {
    const std::lock_guard lock(mutex_);
    vtensor = next_queued();
    if (vtensor == nullptr) return false;
    unqueue(*vtensor);
    vtensor->busy_ = true;
    tokens = vtensor->wanted_tokens_;
  }
  const Turn turn(*this, *vtensor, Turn::Taken{});
  const Status done = grow(*vtensor, tokens);
  const std::lock_guard lock(mutex_);
  if (done) stats_.prepared += 1;
  return true;
}

}  // namespace cachalot::vtensor

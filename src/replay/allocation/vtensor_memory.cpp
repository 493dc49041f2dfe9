#include "replay/allocation/vtensor_memory.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace cachalot::replay {

Result<std::unique_ptr<VTensorMemory>> VTensorMemory::open(device_memory::Backend& backend,
                                                           const device_memory::ModelBackend* model,
                                                           const VTensorMemoryOptions& options) {
  std::unique_ptr<VTensorMemory> memory(new VTensorMemory(model, options));
  memory->options_.vtensor.with_thread = false;
  CACHALOT_TRY_ASSIGN(
      memory->set_, vtensor::VTensorSet::open(backend, memory->budget_, memory->options_.vtensor));
  return memory;
}

// An id of a trace stands for a block and all in front of it, as a hash does.
std::vector<BlockHash> VTensorMemory::hashes_of(const Prompt& prompt) const {
  std::vector<BlockHash> hashes;
  if (options_.vtensor.block_tokens == 0) return hashes;
  hashes.reserve(prompt.ids.size());
  for (const std::uint64_t id : prompt.ids) hashes.push_back({.low = id, .high = 0});
  return hashes;
}

Status VTensorMemory::begin(std::size_t number, const Prompt& prompt) {
  if (number >= slots_.size()) slots_.resize(number + 1);
  Slot& slot = slots_[number];
  if (options_.is_static && slot.vtensor != nullptr) return {};
  const std::uint64_t most = options_.vtensor.max_tokens, begin_ns = now_ns();
  const auto created = options_.is_static
                           ? set_->create(most, most)
                           : set_->create(prompt.tokens, prompt.total_tokens, hashes_of(prompt));
  if (!created) return created.error();
  times_.begin_ns += now_ns() - begin_ns;
  slot = {.vtensor = created->vtensor, .total_tokens = prompt.total_tokens};
  return {};
}

// While the prompt is computed the background maps what its first step needs.
Status VTensorMemory::computed(std::size_t number, const Prompt& prompt) {
  if (options_.is_static) return {};
  vtensor::VTensor& vtensor = *slots_[number].vtensor;
  set_->prepare(vtensor, std::min(prompt.tokens + 1, prompt.total_tokens));
  work_for_this_step();
  const std::vector<BlockHash> hashes = hashes_of(prompt);
  return hashes.empty() ? Status() : set_->record(vtensor, hashes);
}

Status VTensorMemory::grow(std::size_t number, std::uint64_t tokens) {
  if (options_.is_static) return {};
  Slot& slot = slots_[number];
  CACHALOT_TRY(set_->wait_ready(*slot.vtensor, tokens));
  set_->prepare(*slot.vtensor, std::min(tokens + 1, slot.total_tokens));
  return {};
}

void VTensorMemory::end(std::size_t number) {
  if (options_.is_static) return;
  set_->release(std::exchange(slots_[number].vtensor, nullptr));
  // Before a request of the next step finds it with chunks that nothing may keep.
  if (options_.vtensor.idle_chunks == 0) work_for_this_step();
}

std::uint64_t VTensorMemory::now_ns() const {
  return model_ != nullptr ? model_->charged_ns() : base::SteadyClock::read();
}

void VTensorMemory::work_for_this_step() {
  for (;;) {
    const std::uint64_t begin_ns = now_ns();
    const vtensor::VTensorSet::Work done = set_->work_once();
    const std::uint64_t took_ns = now_ns() - begin_ns;
    if (done == vtensor::VTensorSet::Work::kNone) return;
    times_.background_ns += took_ns;
    if (done == vtensor::VTensorSet::Work::kGrew) step_ns_ += took_ns;
  }
}

void VTensorMemory::step(std::uint64_t step_ns) {
  work_for_this_step();
  const std::uint64_t mapped_ns = std::exchange(step_ns_, 0);
  times_.longest_step_ns = std::max(times_.longest_step_ns, mapped_ns);
  if (mapped_ns <= step_ns) return;
  times_.late_steps += 1;
  times_.late_ns += mapped_ns - step_ns;
}

std::uint64_t VTensorMemory::bytes() const {
  return set_->stats().chunks.used * options_.vtensor.chunk_bytes;
}

}  // namespace cachalot::replay

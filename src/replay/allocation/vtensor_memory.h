// KV memory in vTensors, really taken from a device.
#pragma once

#include <memory>
#include <vector>

#include "device_memory/model/model_backend.h"
#include "replay/allocation/kv_memory.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::replay {

struct VTensorMemoryOptions {
  vtensor::VTensorOptions vtensor;  // without a thread: the background's work is done in step()
  std::uint64_t capacity_chunks = vtensor::LocalBudget::kNoLimit;
  bool is_static = false;  // each slot has max_tokens from its first request on
};

// What the driver's calls take: by its published costs, or by the clock.
struct KvTimes {
  std::uint64_t begin_ns = 0;  // until the prompts' chunks are mapped: this cannot be done ahead
  std::uint64_t background_ns = 0;
  std::uint64_t longest_step_ns = 0;  // of growth in a step: what decode would wait for
  std::uint64_t late_steps = 0;       // growth took longer than the step
  std::uint64_t late_ns = 0;          // by so much
};

class VTensorMemory final : public KvMemory {
 public:
  // @param model  the same as `backend` where it is one, whose charges say how long calls take; or null
  static Result<std::unique_ptr<VTensorMemory>> open(device_memory::Backend& backend,
                                                     const device_memory::ModelBackend* model,
                                                     const VTensorMemoryOptions& options);

  Status begin(std::size_t slot, const Prompt& prompt) override;
  Status computed(std::size_t slot, const Prompt& prompt) override;
  Status grow(std::size_t slot, std::uint64_t tokens) override;
  void end(std::size_t slot) override;
  void step(std::uint64_t step_ns) override;
  std::uint64_t bytes() const override;

  vtensor::VTensorStats stats() const { return set_->stats(); }
  const KvTimes& times() const { return times_; }

 private:
  struct Slot {
    vtensor::VTensor* vtensor = nullptr;
    std::uint64_t total_tokens = 0;
  };

  VTensorMemory(const device_memory::ModelBackend* model, const VTensorMemoryOptions& options)
      : model_(model), options_(options), budget_(options.capacity_chunks) {}
  std::uint64_t now_ns() const;
  void work_for_this_step();
  std::vector<BlockHash> hashes_of(const Prompt& prompt) const;

  const device_memory::ModelBackend* model_;
  VTensorMemoryOptions options_;
  vtensor::LocalBudget budget_;
  std::unique_ptr<vtensor::VTensorSet> set_;
  std::vector<Slot> slots_;
  KvTimes times_;
  std::uint64_t step_ns_ = 0;  // of growth, since the last step
};

}  // namespace cachalot::replay

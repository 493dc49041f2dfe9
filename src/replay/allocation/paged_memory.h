// KV memory in pages of 16 tokens, really taken from a device.
#pragma once

#include <vector>

#include "replay/allocation/kv_memory.h"
#include "vtensor/chunk_store.h"

namespace cachalot::replay {

// One table for all layers: a page holds its tokens in each of them, wherever the layers are.
class PagedMemory final : public KvMemory {
 public:
  static constexpr std::uint64_t kPageTokens = 16;

  PagedMemory(device_memory::Backend& backend, std::uint64_t token_bytes)
      : store_(backend, budget_, kPageTokens * token_bytes) {}

  Status begin(std::size_t slot, const Prompt& prompt) override;
  Status grow(std::size_t slot, std::uint64_t tokens) override;
  void end(std::size_t slot) override;
  std::uint64_t bytes() const override { return store_.counts().used * store_.chunk_bytes(); }

 private:
  vtensor::LocalBudget budget_;
  vtensor::ChunkStore store_;
  std::vector<std::vector<vtensor::Chunk>> slots_;
};

}  // namespace cachalot::replay

// The KV memory of one request: a range of addresses that never moves, with chunks at the beginning of
// each of its planes. A kernel reads and writes it as one tensor, without a page table.
//
// 1. What is mapped is changed by the one thread that has set `busy` under the set's lock; it works on
//    the device without that lock.
// 2. ready_tokens() is at most what is mapped and accessible in all planes. It shrinks only by calls on
//    this vTensor that are made by its owner, so what the owner read stays true.
#pragma once

#include <atomic>
#include <cstdint>

#include "vtensor/mapped_planes.h"
#include "vtensor/prefix_table.h"

namespace cachalot::vtensor {

class VTensor {
 public:
  VTensor(device_memory::Backend& backend, const RangeLayout& layout, device_memory::Address base)
      : planes_(backend, layout, base) {}

  device_memory::Address base() const { return planes_.base(); }
  // Tokens whose memory is there. acquire: pairs with set_ready(), so that a thread that sees the tokens also
  // sees what the thread did that mapped them.
  std::uint64_t ready_tokens() const { return ready_tokens_.load(std::memory_order_acquire); }
  std::uint64_t max_tokens() const { return max_tokens_; }

 private:
  friend class VTensorSet;
  friend class IdleVTensors;

  void set_ready() {
    ready_tokens_.store(planes_.tokens(), std::memory_order_release);  // pairs with ready_tokens()
  }

  // Owned by the thread that set busy_.
  MappedPlanes planes_;
  std::uint64_t shared_tokens_ = 0;    // the first ones: others have their chunks, too
  std::uint64_t borrowed_chunks_ = 0;  // of those, filled by another request
  // Set before the request sees it.
  std::uint64_t max_tokens_ = 0;

  std::atomic<std::uint64_t> ready_tokens_{0};

  // Under the set's lock.
  PrefixTable::Block* pinned_ = nullptr;  // the last one that it found or recorded
  bool busy_ = false;
  bool is_queued_ = false;  // for the background
  std::uint64_t wanted_tokens_ = 0;
};

}  // namespace cachalot::vtensor

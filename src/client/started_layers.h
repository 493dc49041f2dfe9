// A GPU's copies of layers that were launched, until somebody waits for them.
//
// @threads one at a time
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "client/gpus.h"
#include "kv/cuda/pending_copy.h"

namespace cachalot::client {

class StartedLayers {
 public:
  bool empty() const { return copies_.empty(); }
  bool has(std::uint32_t layer) const { return copies_.contains(layer); }
  void add(std::uint32_t layer, kv::PendingCopy copy) { copies_.emplace(layer, std::move(copy)); }
  std::uint32_t first() const { return copies_.begin()->first; }  // of some

  // Whatever it says, the copy is not among them any more. @errors kIo
  Status wait(Gpu& gpu, std::uint32_t layer) {
    const auto at = copies_.find(layer);
    Status outcome = gpu.note(at->second.wait());
    copies_.erase(at);
    return outcome;
  }
  // For each, in order. @errors the first one's
  Status wait_for_all(Gpu& gpu) {
    Status outcome;
    while (!empty()) {
      Status one = wait(gpu, first());
      if (outcome) outcome = std::move(one);
    }
    return outcome;
  }
  // In a forked child, where nobody may ask the driver.
  void abandon() { static_cast<void>(new auto(std::move(copies_))); }

 private:
  std::map<std::uint32_t, kv::PendingCopy> copies_;
};

}  // namespace cachalot::client

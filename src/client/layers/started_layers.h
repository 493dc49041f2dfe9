// Launched GPU copies of layers that were not waited for yet.
//
// @threads one at a time
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "client/cache_table.h"

namespace cachalot::client {

class StartedLayers {
 public:
  bool empty() const { return copies_.empty(); }
  bool has(std::uint32_t layer) const { return copies_.contains(layer); }
  void add(std::uint32_t layer, StartedCopies copies) { copies_.emplace(layer, std::move(copies)); }
  std::uint32_t first() const { return copies_.begin()->first; }  // precondition: !empty()

  // Waits for the layer's copy and removes it, also after an error. @errors kIo
  Status wait(std::uint32_t layer) {
    const auto at = copies_.find(layer);
    Status outcome = at->second.wait();
    copies_.erase(at);
    return outcome;
  }
  // Waits for all in order of layers. @errors the first error
  Status wait_for_all() {
    Status outcome;
    while (!empty()) {
      Status one = wait(first());
      if (outcome) outcome = std::move(one);
    }
    return outcome;
  }
  // In a forked child: drops the copies without driver calls.
  void abandon() { static_cast<void>(new auto(std::move(copies_))); }

 private:
  std::map<std::uint32_t, StartedCopies> copies_;
};

}  // namespace cachalot::client

// Payload memory that UCX reads or writes at present: entered, until UCX has ended the operation.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "transfer/link/payload_memory.h"

namespace cachalot::transfer {

class Pins {
 public:
  // @return false: the memory is closed
  bool add(const std::shared_ptr<PayloadMemory>& memory) {
    if (!memory->enter()) return false;
    pinned_.push_back(memory);
    return true;
  }
  void remove(const std::shared_ptr<PayloadMemory>& memory) {
    pinned_.erase(std::find(pinned_.begin(), pinned_.end(), memory));
    memory->leave();
  }
  bool is_empty() const { return pinned_.empty(); }
  // Whether an owner waits for its memory.
  bool has_closed() const {
    return std::any_of(pinned_.begin(), pinned_.end(),
                       [](const auto& memory) { return memory->is_closed(); });
  }

 private:
  std::vector<std::shared_ptr<PayloadMemory>> pinned_;  // a few
};

}  // namespace cachalot::transfer

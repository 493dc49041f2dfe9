// Which layers a layer load or store has copied, and whether in order: then a running checksum of each block is right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace cachalot::client {

class LayerSequence {
 public:
  explicit LayerSequence(std::uint32_t layers = 0) : is_done_(layers) {}

  // Before the copy of a layer, also before one that fails.
  void begin(std::uint32_t layer) { in_order_ = in_order_ && layer == next_; }
  void break_order() { in_order_ = false; }
  void finish(std::uint32_t layer) {
    is_done_[layer] = true;
    next_ = layer + 1;
  }

  bool is_in_order() const { return in_order_; }
  bool is_done(std::uint32_t layer) const { return is_done_[layer]; }
  // None: all layers are done.
  std::optional<std::uint32_t> first_missing() const {
    const auto missing = std::find(is_done_.begin(), is_done_.end(), false);
    if (missing == is_done_.end()) return {};
    return static_cast<std::uint32_t>(missing - is_done_.begin());
  }

 private:
  std::vector<bool> is_done_;
  std::uint32_t next_ = 0;
  bool in_order_ = true;
};

}  // namespace cachalot::client

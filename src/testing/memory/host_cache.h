// A host's cache: a private copy of any lines of the device, of any age.
//
// 1. A line enters whole, as the device has it at that instant, and stays until it is dropped.
// 2. Only a dirty line is written back, whole: with it go the old words of its neighbours.
#pragma once

#include <array>
#include <cstdint>

#include "base/rng.h"
#include "testing/memory/lossy_device.h"

namespace cachalot::memory {

class HostCache {
 public:
  explicit HostCache(LossyDevice& device)
      : device_(device),
        state_(device.lines(), PROT_READ | PROT_WRITE),
        lines_(device.lines() * kLineBytes, PROT_READ | PROT_WRITE) {}

  bool has(std::uint64_t number) const { return state_.data()[number] != kAbsent; }

  // The cached line; fetched first where it is absent.
  Line& line(std::uint64_t number) {
    Line& cached = reinterpret_cast<Line*>(lines_.data())[number];
    if (state_.data()[number] == kAbsent) {
      cached = device_.line(number);
      state_.data()[number] = kClean;
    }
    return cached;
  }
  void fetch(std::uint64_t number) { static_cast<void>(line(number)); }

  // A plain store: stays here until the line is dropped.
  void store_word(std::uint64_t number, unsigned word, std::uint64_t value) {
    line(number).words[word] = value;
    state_.data()[number] = kDirty;
  }

  // Eviction or flush.
  void drop(std::uint64_t number) {
    unsigned char& state = state_.data()[number];
    if (state == kDirty) device_.store(number, 0xff, line(number));
    state = kAbsent;
  }

  // The last lines that were used, which prefetch and eviction like best.
  void used(std::uint64_t number) { recent_[recent_next_++ % recent_.size()] = number; }
  std::uint64_t recent(base::Rng& rng) const { return recent_[rng.below(recent_.size())]; }

 private:
  static constexpr unsigned char kAbsent = 0, kClean = 1, kDirty = 2;

  LossyDevice& device_;
  Pages state_;  // a byte a line
  Pages lines_;
  std::array<std::uint64_t, 64> recent_ = {};
  std::uint32_t recent_next_ = 0;
};

}  // namespace cachalot::memory

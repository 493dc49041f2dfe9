// The bytes that all simulated hosts share: what is really on the devices, and when it changed.
//
// Words (8 bytes) are the unit of change, lines the unit in which hosts fetch. A *moment* is the
// number of words stored so far.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/line.h"
#include "testing/memory/pages.h"

namespace cachalot::memory {

class LossyDevice {
 public:
  // How many stored words line_at() can look back on.
  static constexpr std::uint64_t kHistoryWords = 1 << 16;

  explicit LossyDevice(std::uint64_t lines)
      : lines_(lines), pages_(lines * kLineBytes, PROT_READ | PROT_WRITE) {}

  std::uint64_t lines() const { return lines_; }
  const Line& line(std::uint64_t number) const { return data()[number]; }

  // Where the bytes are, for tests that damage or inspect them.
  Line* data() const { return reinterpret_cast<Line*>(pages_.data()); }

  // Stores the words of `value` whose bits are set in `mask`.
  void store(std::uint64_t number, std::uint8_t mask, const Line& value);

  std::uint64_t moment() const { return moment_; }

  // Keeps old values from now on, for line_at(). Costs memory and time; off at first.
  void keep_history() {
    if (!history_.empty()) return;
    history_.resize(kHistoryWords);
    history_begin_ = moment_;
  }

  // The line as it was at `moment`, or as far back as the history goes.
  Line line_at(std::uint64_t number, std::uint64_t moment) const;

  // A hash of all that was stored, and of what note() was told.
  std::uint64_t fingerprint() const { return fingerprint_; }
  void note(std::uint64_t what) {
    fingerprint_ = (fingerprint_ ^ what) * 0x9fb21c651e98df25u;
    fingerprint_ ^= fingerprint_ >> 29;
  }

 private:
  struct Change {
    std::uint64_t word;  // its number on the device
    std::uint64_t old_value;
  };

  std::uint64_t lines_;
  Pages pages_;
  std::uint64_t moment_ = 0;
  std::uint64_t history_begin_ = 0;  // no change before this moment is in history_
  std::vector<Change> history_;      // a ring: change m at m % kHistoryWords; empty when off
  std::uint64_t fingerprint_ = 0;
};

}  // namespace cachalot::memory

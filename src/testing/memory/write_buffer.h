// Non-temporal stores of one host on their way to the device.
//
// Each core (fiber) has *open* lines; order() closes them into a group with the next stamp.
//
//   core 1:  [line][line][line] open ──order()──►  group 7 ┐
//   core 2:  [line] open, stamp 6    ──order()──►  group 8 ├─ drain in this order, inside a group at
//                                                          ┘  random, word by word
// Invariants
//  1. A word drains only after all groups that were closed before it was written, whichever core
//     closed them: a core that learns of an order() by any way writes after it.
//  2. Words of one core to one address drain in program order.
//  3. Nothing else is promised: not between the words of a line, not between cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/rng.h"
#include "memory/line.h"
#include "testing/memory/pages.h"

namespace cachalot::memory {

class WriteBuffer {
 public:
  struct Drained {
    std::uint64_t line;
    std::uint8_t mask;  // bit i: words[i] reaches the device now
    Line value;
  };

  explicit WriteBuffer(std::uint64_t lines)
      : pending_(lines * sizeof(std::uint16_t), PROT_READ | PROT_WRITE) {}

  void put(std::size_t core, std::uint64_t line, const Line& value);
  // Closes the core's open lines. Returns the stamp after whose group they have all drained.
  std::uint64_t order(std::size_t core);

  // Drains some words of one line, any that may; false if there are none at all.
  bool drain_any(base::Rng& rng, double whole_line, Drained& out);
  // Drains something that stands between group `stamp` and the device; false once it is there.
  bool drain_through(std::uint64_t stamp, base::Rng& rng, double whole_line, Drained& out);

  std::size_t lines() const { return size_; }
  bool holds(std::uint64_t line) const { return pending()[line] != 0; }
  // Puts the words that `core` sees over `value`: those of closed groups and its own open ones.
  void overlay(std::size_t core, std::uint64_t line, Line& value) const;

 private:
  struct Entry {
    std::uint64_t line;
    std::uint64_t stamp;  // groups closed when it was written
    std::uint8_t mask;    // words not yet drained
    Line value;
  };
  using Entries = std::vector<Entry>;

  std::uint16_t* pending() const { return reinterpret_cast<std::uint16_t*>(pending_.data()); }
  Entries& open(std::size_t core);
  Entry* random_open(base::Rng& rng, Entries*& from);
  void drain(Entries& from, std::size_t index, base::Rng& rng, double whole_line, Drained& out);
  void drain_first_group(base::Rng& rng, double whole_line, Drained& out);
  // Stamp of the last group that has drained, with all before it.
  std::uint64_t drained() const { return stamp_ - groups_.size(); }

  std::vector<Entries> open_;   // by core
  std::deque<Entries> groups_;  // the first has stamp drained() + 1, the last stamp_
  std::uint64_t stamp_ = 0;     // groups closed so far
  std::size_t size_ = 0;        // entries, open and closed
  std::size_t open_size_ = 0;
  Pages pending_;  // entries, by line
};

}  // namespace cachalot::memory

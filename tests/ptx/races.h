// For tests: shared memory that two threads of a block use, one of them writing, with nothing between that
// puts it in order: a barrier of all threads, or, within a warp, bar.warp.sync. (A shuffle puts no memory in
// order.) Found whether or not the turns of this run happen to make it wrong.
//
// Atomic accesses are not looked at. Barriers of some threads and those in shared memory put things in order that are not followed here:
// a block that uses one is not looked at from then on.
#pragma once

#include <cstdint>
#include <vector>

namespace cachalot::ptx {

class Races {
 public:
  // The accessing thread, and what it has passed: barriers of the block, meetings of the warp.
  struct Actor {
    std::uint32_t thread = 0, barriers = 0, meetings = 0;
  };

  explicit Races(std::uint64_t bytes) : cells_(bytes) {}

  // @param at  from the first byte on
  // @throws Violation
  void touch(const Actor& actor, std::uint64_t at, std::uint64_t bytes, bool writes);
  void stop() { cells_.clear(); }

 private:
  enum class Readers : std::uint8_t { kNone, kOne, kOfAWarp, kOfWarps };  // since the last barrier
  struct Cell {
    Actor writer, reader;
    bool was_written = false;
    Readers readers = Readers::kNone;
  };

  static bool in_order(const Actor& before, const Actor& now);
  static void add_reader(Cell& cell, const Actor& actor);
  static bool was_read_by_others(const Cell& cell, const Actor& actor);

  std::vector<Cell> cells_;  // a byte each
};

}  // namespace cachalot::ptx

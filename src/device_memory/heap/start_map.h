// Which block of a segment covers an address: for each unit of the segment the last block that starts
// in it, and a tree of bits over the units that have one.
//
// The tree has 64 children a node, so that a search visits a word a level: two levels for 8 GiB in
// units of 2 MiB, three for 512 GiB. Splitting and merging blocks costs a word each.
#pragma once

#include <cstdint>
#include <vector>

namespace cachalot::device_memory {

struct Block;

class StartMap {
 public:
  // Makes place for units [0, units); it never shrinks.
  void grow(std::uint64_t units);

  std::uint64_t units() const { return last_start_.size(); }
  // The last block that starts in the unit; null: none does.
  Block* last_in(std::uint64_t unit) const { return last_start_[unit]; }
  void set(std::uint64_t unit, Block* block);

  // The last block that starts in the unit or in one before it; null: there is none.
  Block* last_up_to(std::uint64_t unit) const;

 private:
  std::vector<Block*> last_start_;
  // [0]: a bit a unit; [k + 1]: a bit a word of [k]
  std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace cachalot::device_memory

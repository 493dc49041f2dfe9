// Blocks that were retracted during a read that cannot discard (design page pool,
// "Pinned reads"): they rest until all reads that were in flight then have ended.
//
// Why that is enough: a reader publishes its pin, completes it, and looks up only then; the keeper
// completes the tombstone, and reads the pins only then. One of the two comes first: either the
// reader's lookup sees the tombstone, or the keeper sees the pin.
//
// @threads one
#pragma once

#include <cstdint>
#include <vector>

#include "pool/format/access.h"

namespace cachalot::pool {

class Limbo {
 public:
  explicit Limbo(const Access& access) : access_(&access) {}

  // From now on the pins of this client slot, which has no reader yet, count. Lines of later incarnations
  // count too: a process that attaches again goes on counting, and its reads go on.
  void add_reader(std::uint32_t client, std::uint32_t incarnation);
  void remove_reader(std::uint32_t client);
  bool has_readers() const { return !readers_.empty(); }

  void add(std::uint32_t block) { arrived_.push_back(block); }
  bool is_empty() const { return arrived_.empty() && groups_.empty(); }

  // Reads the pins of all readers and gives back the blocks that no reader delays any more. All
  // tombstones of blocks that were added must be complete. A pin that cannot be read counts as held.
  // @cost a line per reader, overlapped; nothing if the limbo is empty
  std::vector<std::uint32_t> settle();
  // The process that pinned in this slot has exited, or ended all its reads.
  void forget(std::uint32_t client);

 private:
  struct Reader {
    std::uint32_t client;
    std::uint32_t incarnation;
  };
  struct Wait {
    std::uint32_t client;
    std::uint64_t newest;  // reads up to here may have seen the blocks
  };
  struct Group {
    std::vector<std::uint32_t> blocks;
    std::vector<Wait> waits;
  };
  struct Pins {
    bool is_known = false;
    std::uint64_t oldest = 0, newest = 0;
  };

  std::vector<Pins> read_pins() const;

  const Access* access_;
  std::vector<Reader> readers_;  // by client slot
  std::vector<std::uint32_t> arrived_;
  std::vector<Group> groups_;
};

}  // namespace cachalot::pool

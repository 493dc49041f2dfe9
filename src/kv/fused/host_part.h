// What the host does around a device's copy. A device's reads and writes of pool memory pass through the
// host's caches, and a hash runs where the bytes can be read: on the host, over the pool's lines.
#pragma once

#include <span>
#include <vector>

#include "kv/copy_engine.h"
#include "kv/fused/row_blocks.h"

namespace cachalot::kv {

// Knows the lines of the pool that a call touches; keeps nothing of the call's own but the hashes.
class HostPart {
 public:
  HostPart() = default;
  HostPart(const CopyPlan& plan, std::span<const BlockCopy> blocks);
  // A scatter of rows: pieces of pool memory, of any alignment.
  explicit HostPart(std::span<const RowPiece> pieces);

  // Before a scatter is launched: nothing old of the lines is in the host's caches (R3).
  // @cost  a flush of each line; nothing where caches are coherent
  void before_scatter(memory::Domain& domain) const;
  // After a gather has completed: what the device left in the caches is written back and gone (R2), in
  // order before what the caller publishes (R4). @cost  as above
  void after_gather(memory::Domain& domain) const;
  // Brings the lines of the blocks that have a hash to it, in pool order.
  // @cost  a read of each byte from the pool
  void hash() const;

 private:
  struct Hashed {
    memory::FusedHash* hash;
    std::size_t first, last;  // of lines_
  };
  std::vector<memory::Extent> lines_;
  std::vector<Hashed> hashed_;
};

}  // namespace cachalot::kv

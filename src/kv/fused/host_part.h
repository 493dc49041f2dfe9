// What the host does around a device's copy. A device's reads and writes of pool memory pass through the
// host's caches, and a hash runs where the bytes can be read: on the host, over the pool's lines.
#pragma once

#include <span>
#include <vector>

#include "kv/copy_engine.h"

namespace cachalot::kv {

// The lines of the pool that a call touches; what lies side by side is one extent.
std::vector<memory::Extent> touched_lines(const CopyPlan& plan, std::span<const BlockCopy> blocks);

// Before a scatter is launched: nothing old of these lines is in the host's caches (R3).
void before_scatter(memory::Domain& domain, std::span<const memory::Extent> lines);

// After a gather has completed: what the device left in the caches is written back and gone (R2), in
// order before what the caller publishes (R4).
void after_gather(memory::Domain& domain, std::span<const memory::Extent> lines);

// Brings the lines of the blocks that have a hash to it, in pool order.
// @cost  a read of each byte from the pool
void hash_lines_of(const CopyPlan& plan, std::span<const BlockCopy> blocks);

}  // namespace cachalot::kv

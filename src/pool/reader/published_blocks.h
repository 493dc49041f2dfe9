// All that the directory publishes, for programs that list a pool or follow it from outside the keeper.
//
// A scan sees each entry as of some moment while it runs.
//
// @threads any
#pragma once

#include <functional>
#include <vector>

#include "block_hash/block_hash.h"
#include "pool/format/access.h"

namespace cachalot::pool {

// Calls f(entry) for each published entry, in the order of slots. Numbers in the entry are within the geometry, and the payload
// may be accessed here.
// @cost a read of the whole directory
void for_each_published(const Access& access, const std::function<void(const Entry&)>& f);

// The digests of the pool's namespaces; that of id i is at i - 1. All zero: the line cannot be read.
std::vector<BlockHash> read_namespaces(const Access& access);

}  // namespace cachalot::pool

// Computes the block hashes that nodes of a radix tree lack.
//
// The chain of a namespace starts with the hasher's root; `extra` is an extra key {"extra", bytes} of its first block.
#pragma once

#include "block_hash/block_hasher.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {

// Of `node` and all nodes of its path. Hashes that are there stay as they are, and are chained from where the
// algorithm's digest is a block hash; a longer digest (SHA-256) is computed again from the start.
// @threads one at a time
// @cost    the hasher's a page
void fill_hashes(RadixTree& tree, NodeId node, block_hash::BlockHasher& hasher);

}  // namespace cachalot::tier

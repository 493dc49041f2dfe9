// Computes the block hashes that nodes of a radix tree lack.
//
// The chain of a namespace starts with the hasher's root; a framed `extra` is an extra key {"extra", bytes} of its
// first block. A page of bigrams is hashed as 64-bit ids: first token | second token << 32.
#pragma once

#include "block_hash/block_hasher.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {

// Of `node` and all nodes of its path. Hashes that are there stay as they are, and are chained from where the
// algorithm's digest is a block hash; a longer digest (SHA-256) is computed again from the start.
// @threads one at a time
// @cost    the hasher's a page
void fill_hashes(RadixTree& tree, NodeId node, block_hash::BlockHasher& hasher);

// Of all nodes: for storage that is attached to a tree in use. A second call changes nothing.
void fill_all_hashes(RadixTree& tree, block_hash::BlockHasher& hasher);

}  // namespace cachalot::tier

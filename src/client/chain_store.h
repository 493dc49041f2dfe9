// Stores of chains of blocks: reserve, copy, commit. A call stores one chain for each head group. The one that is behind
// goes on next, a batch at a time, so a store that ends early has whole blocks in the pool.
#pragma once

#include <vector>

#include "client/block_copies.h"

namespace cachalot::client {

struct StoredChain {
  BlockCall call;           // all chains of a store are of equally many blocks
  const BlockHash* parent;  // null: the chain starts a prompt
  BlockSource& source;
};

// As Client::store, without the checks of the engine's side. Counts blocks of which all chains are in the pool.
// @shape at least one chain
Result<Stored> store_chains(std::span<const StoredChain> chains);
inline Result<Stored> store_blocks(const BlockCall& call, const BlockHash* parent,
                                   BlockSource& source) {
  const StoredChain chain{call, parent, source};
  return store_chains({&chain, 1});
}

// Before a store: drops what this session found damaged, which no sound block could replace otherwise.
void make_way(Session& session, std::span<const BlockHash> hashes, const Deadline& deadline);

// How much of a chain is in the pool.
struct ChainProgress {
  explicit ChainProgress(std::size_t wanted) : is_written(wanted) {}

  std::size_t blocks = 0;
  std::vector<bool> is_written;  // by this store
  std::optional<Code> reason;    // why not more

  // Adds the keeper's verdicts on the next blocks. @return whether it took all of them
  bool take(std::span<const pool::Verdict> verdicts);
  std::size_t written() const;
};
// Of all chains of a store.
Stored stored_of(std::span<const ChainProgress> chains);

// Maps the keeper's verdict to the result of a store.
std::optional<Code> reason_of(pool::Verdict verdict);

}  // namespace cachalot::client

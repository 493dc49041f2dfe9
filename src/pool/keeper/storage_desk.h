// Where a keeper passes on what clients ask of the storage behind the pool.
#pragma once

#include <cachalot/hash.h>

#include <cstdint>
#include <span>

#include "pool/format/requests.h"
#include "pool/format/storage_state.h"

namespace cachalot::pool {

// A client's question about a chain of blocks of one namespace.
struct StorageQuestion {
  std::uint32_t namespace_id = 0;  // 0: the pool does not have it
  BlockHash space;                 // the namespace's digest
  std::span<const BlockHash> hashes = {};
  bool fetches = false;  // bring what is stored into the pool
  bool asks = false;     // also of storage that others write
  bool is_sure = false;  // the chain before it is stored
  bool goes_on = false;  // more of the chain is asked for next
};

// @threads the keeper's; a call must not wait for I/O
class StorageDesk {
 public:
  virtual ~StorageDesk() = default;
  virtual StorageAnswer answer(const StorageQuestion& question) = 0;
  // What `cachalot pool info` shows.
  virtual StorageState state() { return {}; }
  // Whether storage has blocks of the namespace with this digest.
  virtual bool has_blocks_of(const BlockHash& space) = 0;
};

}  // namespace cachalot::pool

// A block's layers one after the other, so that copies and computation overlap.
//
// Both hold their cache until the last layer is loaded, or the store is finished; each copy uses it as a
// call does. A GPU's copies that were started are waited for before the cache is let go of, and before
// anybody else may have the blocks.
#pragma once

#include <cachalot/client.h>

#include <memory>
#include <optional>
#include <vector>

#include "client/copies.h"
#include "client/started_layers.h"

namespace cachalot {

// @threads one at a time
struct Client::LayerLoad::Impl {
  std::shared_ptr<client::Session> session;  // shared: the client may go first
  client::OpenCache cache;
  CudaStream stream;  // of a GPU's cache
  std::vector<PageId> pages;
  client::Hit hit;
  client::Extents extents;
  // Of the lines read so far, where each layer is a stretch of whole lines; else empty. Copies under way bring
  // bytes to them when they are waited for.
  std::vector<memory::FusedHash> hashes;
  std::vector<bool> loaded;  // layers
  std::uint32_t next_layer = 0;
  bool in_order = true;  // layers came so; else the hashes are nobody's
  client::StartedLayers started = {};
  std::optional<client::ReadPin> pin = {};  // of a pinned load, until it is complete

  ~Impl();
  static Result<std::unique_ptr<Impl>> begin(const client::Call& call, client::OpenCache cache,
                                             bool layers_are_stretches, bool is_pinned);
  Status start_layer(std::uint32_t layer);
  Result<std::size_t> load_layer(std::uint32_t layer);

 private:
  std::vector<kv::BlockCopy> copies();
  Status copy(std::uint32_t layer);
  std::size_t count_undamaged() const;
  std::uint64_t hash_in_pool(std::size_t block) const;
};

// @threads one at a time
struct Client::LayerStore::Impl {
  std::shared_ptr<client::Session> session;  // shared: the client may go first
  client::OpenCache cache;
  CudaStream stream = nullptr;         // of a GPU's cache
  std::vector<BlockHash> hashes = {};  // of all blocks
  std::vector<PageId> pages = {};
  std::optional<BlockHash> parent = {};
  std::size_t present = 0;  // leading blocks that were in the pool already
  pool::Reservation reservation = {};
  client::Extents extents = {};
  std::vector<memory::FusedHash> sums = {};  // as above
  std::vector<bool> stored = {};             // layers
  std::uint32_t next_layer = 0;
  bool in_order = true;
  bool is_finished = false;
  bool is_lost = false;  // its blocks, for a GPU failed in a copy into them
  client::StartedLayers started = {};

  ~Impl();
  static Result<std::unique_ptr<Impl>> begin(const client::Call& call, client::OpenCache cache,
                                             const BlockHash* parent, bool layers_are_stretches);
  Status start_layer(std::uint32_t layer);
  Status store_layer(std::uint32_t layer);
  Result<Stored> finish();

 private:
  Status check_unfinished() const;
  Status check_not_stored(std::uint32_t layer) const;
  std::vector<kv::BlockCopy> copies();
  Status copy(std::uint32_t layer);
  Status end_copies(Status copied);
};

}  // namespace cachalot

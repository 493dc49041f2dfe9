// A block's layers one after the other, so that copies and computation overlap.
//
// Both hold their cache until the last layer is loaded, or the store is finished; each copy uses it as a
// call does.
#pragma once

#include <cachalot/client.h>

#include <memory>
#include <optional>
#include <vector>

#include "engine/copies.h"

namespace cachalot {

// @threads one at a time
struct Client::LayerLoad::Impl {
  std::shared_ptr<engine::Session> session;  // shared: the client may go first
  engine::OpenCache cache;
  std::vector<PageId> pages;
  engine::Hit hit;
  engine::Extents extents;
  // Of the lines read so far, where layers come in order, each a stretch of whole lines; else empty.
  std::vector<memory::FusedHash> hashes;
  std::vector<bool> loaded;  // layers
  std::uint32_t next_layer = 0;

  static Result<std::unique_ptr<Impl>> begin(const engine::Call& call, engine::OpenCache cache,
                                             bool layers_are_stretches);
  Result<std::size_t> load_layer(std::uint32_t layer);

 private:
  Status copy(std::uint32_t layer);
  std::size_t count_undamaged() const;
  std::uint64_t hash_in_pool(std::size_t block) const;
};

// @threads one at a time
struct Client::LayerStore::Impl {
  std::shared_ptr<engine::Session> session;  // shared: the client may go first
  engine::OpenCache cache;
  std::vector<BlockHash> hashes = {};  // of all blocks
  std::vector<PageId> pages = {};
  std::optional<BlockHash> parent = {};
  std::size_t present = 0;  // leading blocks that were in the pool already
  pool::Reservation reservation = {};
  engine::Extents extents = {};
  std::vector<memory::FusedHash> sums = {};  // as above
  std::vector<bool> stored = {};             // layers
  std::uint32_t next_layer = 0;
  bool is_finished = false;

  ~Impl() {
    if (session->check_usable()) session->give_back(std::move(reservation));
  }
  static Result<std::unique_ptr<Impl>> begin(const engine::Call& call, engine::OpenCache cache,
                                             const BlockHash* parent, bool layers_are_stretches);
  Status store_layer(std::uint32_t layer);
  Result<Stored> finish();

 private:
  Status check_unfinished() const;
};

}  // namespace cachalot

// Loads and stores layer by layer, to overlap copies with computation.
//
// Both hold their cache open until the last layer is loaded or the store is finished; each copy uses the cache
// as a call does. Started GPU copies are waited for before the cache is closed and before the blocks are
// returned.
#pragma once

#include <cachalot/client.h>

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "client/copies.h"
#include "client/layers/layer_sequence.h"
#include "client/layers/started_layers.h"

namespace cachalot {

// @threads one at a time
struct Client::LayerLoad::Impl {
  std::shared_ptr<client::Session> session;  // shared: may outlive the client
  client::OpenCache cache;
  CudaStream stream;  // GPU cache only
  std::vector<PageId> pages;
  client::Hit hit;
  client::Extents extents;
  // Running checksums of the bytes read so far; empty if a layer is not a run of whole lines. A started copy
  // updates them when it is waited for.
  std::vector<memory::FusedHash> hashes;
  client::LayerSequence layers;  // not in order: `hashes` are not used
  client::StartedLayers started = {};
  std::optional<client::ReadPin> pin = {};  // pinned load: until it is complete
  client::PromptCounts::Load counted = {};

  ~Impl();
  static Result<std::unique_ptr<Impl>> begin(const client::Call& call, client::OpenCache cache,
                                             bool layers_are_stretches, bool is_pinned);
  Status start_layer(std::uint32_t layer);
  Result<std::size_t> load_layer(std::uint32_t layer);

 private:
  client::GroupCopies copies();
  Status copy(std::uint32_t layer);
  Error refused(const Error& error);
  void check_bytes();
  std::uint64_t hash_in_pool(std::size_t block) const;
};

// @threads one at a time
struct Client::LayerStore::Impl {
  // One head group of the blocks: a chain of its own.
  struct Chain {
    std::vector<BlockHash> hashes;
    std::optional<BlockHash> parent;
    std::size_t present;  // leading blocks that were in the pool at the start
    std::variant<pool::Reservation, pool::OpenReservation, pool::WrittenReservation> reservation;
    client::Extents extents;
    std::vector<memory::FusedHash> sums;  // as LayerLoad::Impl::hashes

    std::span<const pool::BlockUse> uses() const {
      return std::visit([](const auto& blocks) { return blocks.uses(); }, reservation);
    }
    bool is_open() const { return std::holds_alternative<pool::OpenReservation>(reservation); }
    Status begin_copies();
  };

  std::shared_ptr<client::Session> session;  // shared: may outlive the client
  client::OpenCache cache;
  CudaStream stream = nullptr;  // GPU cache only
  std::vector<PageId> pages = {};
  std::vector<Chain> chains = {};
  client::LayerSequence layers = client::LayerSequence();
  bool is_finished = false;
  bool is_lost = false;  // a GPU failed in a copy into the blocks
  client::StartedLayers started = {};

  ~Impl();
  static Result<std::unique_ptr<Impl>> begin(const client::Call& call, client::OpenCache cache,
                                             const BlockHash* parent, bool layers_are_stretches);
  Status start_layer(std::uint32_t layer);
  Status store_layer(std::uint32_t layer);
  Result<Stored> finish();

 private:
  Status add_chain(const client::Call& call, const BlockHash* parent, std::uint32_t group,
                   bool has_sums);
  Status check_unfinished() const;
  Status check_not_stored(std::uint32_t layer) const;
  bool is_all_present() const;
  client::GroupCopies copies();
  Status begin_copies();
  Status copy(std::uint32_t layer);
  Status end_copies(Status copied);
  void end_reservations();
  Status commit(Chain& chain, client::ChainProgress& progress);
};

}  // namespace cachalot

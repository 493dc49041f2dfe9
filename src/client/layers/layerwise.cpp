#include "client/layers/layerwise.h"

#include <algorithm>

namespace cachalot {
namespace {

using client::Counters;
using memory::kLineBytes;

// Of one store: a client may hold twice as many.
constexpr std::uint32_t kMostPoolBlocks = 128;

Status check_layer(std::uint32_t layer, const KvGeometry& geometry) {
  if (layer < geometry.layers) return {};
  return Error::make(Code::kInvalidArgument, "layer: %u is not below the %u of this rank", layer,
                     geometry.layers);
}

Error started_already(std::uint32_t layer) {
  return Error::make(Code::kInvalidArgument,
                     "layer: %u was started already and not loaded or stored since", layer);
}

// One running checksum per block, over its layers in order; none if a layer is not a run of whole lines.
std::vector<memory::FusedHash> layer_hashes(const KvGeometry& geometry, std::size_t blocks,
                                            bool wanted) {
  if (!wanted || geometry.layer_bytes() % kLineBytes != 0) return {};
  return std::vector<memory::FusedHash>(
      blocks, memory::FusedHash(pool::padded_bytes(geometry.block_bytes())));
}

}  // namespace

// --- Load --------------------------------------------------------------------------------------

Result<std::unique_ptr<Client::LayerLoad::Impl>> Client::LayerLoad::Impl::begin(
    const client::Call& call, client::OpenCache cache, bool layers_are_stretches, bool is_pinned) {
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_pages_differ());
  std::optional<client::ReadPin> pin;  // published before the lookup
  if (is_pinned) {
    CACHALOT_TRY_ASSIGN(client::ReadPin taken, client::ReadPin::take(call.session));
    pin.emplace(std::move(taken));
  }
  const KvGeometry& geometry = cache.cache().geometry();
  const client::HeadGroups& groups = call.cache.groups();
  const client::PoolNames names(groups, call.hashes);
  client::Hit hit = client::look_up(call.session, &call.counters, names.get(),
                                    geometry.block_bytes(), groups.count);
  client::Extents extents;
  bool runs_along = layers_are_stretches && call.session.verifies_checksums();
  for (std::size_t i = 0; i < hit.found().size(); ++i) {
    extents.add(call.session.access(), hit.found()[i].entry.block, geometry.block_bytes());
    runs_along = runs_along && hit.read.has_checksum(i);
  }
  std::vector<memory::FusedHash> hashes = layer_hashes(geometry, hit.found().size(), runs_along);
  std::unique_ptr<Impl> impl(new Impl{call.session.shared_from_this(),
                                      std::move(cache),
                                      call.stream,
                                      {call.pages.begin(), call.pages.end()},
                                      std::move(hit),
                                      std::move(extents),
                                      std::move(hashes),
                                      client::LayerSequence(geometry.layers)});
  if (pin) impl->pin.emplace(std::move(*pin));
  impl->counted = call.session.prompts().begin_load(call.hashes);
  return impl;
}

// Waits for the copies before the cache and the checksums are destroyed.
Client::LayerLoad::Impl::~Impl() {
  if (session->is_forked()) {
    started.abandon();
  } else if (!started.empty()) {
    (void)started.wait_for_all();
  }
}

client::GroupCopies Client::LayerLoad::Impl::copies() {
  const std::uint32_t per_block = cache.pages_per_block();
  client::GroupCopies all(hit.groups);
  for (std::size_t i = 0; i < hit.found().size(); ++i) {
    const std::size_t block = i / hit.groups;
    kv::BlockCopy copy{extents.of(i), std::span(pages).subspan(block * per_block, per_block)};
    if (layers.is_in_order() && !hashes.empty()) copy.hash = &hashes[i];
    all[i % hit.groups].push_back(copy);
  }
  return all;
}

// The copies of some head groups may have ended, and be in the running checksums: the next try would add them again.
Error Client::LayerLoad::Impl::refused(const Error& error) {
  layers.break_order();
  return error;
}

Status Client::LayerLoad::Impl::copy(std::uint32_t layer) {
  CACHALOT_TRY_ASSIGN(const client::CacheUse use, cache.use());
  CACHALOT_TRY(use->check_stream(stream));
  return use->scatter(copies(), {layer, layer + 1}, stream);
}

Status Client::LayerLoad::Impl::start_layer(std::uint32_t layer) {
  CACHALOT_TRY(session->check_usable());
  CACHALOT_TRY(check_layer(layer, cache.cache().geometry()));
  if ((*cache).gpu() == nullptr || hit.found().empty()) return {};
  if (started.has(layer)) return started_already(layer);
  if (!cache.is_open())
    return Error::make(Code::kInvalidArgument, "load: every layer is loaded; begin another one");
  CACHALOT_TRY((*cache).check_stream(stream));
  if (layers.is_done(layer)) layers.break_order();
  Result<client::StartedCopies> copies_of_layer =
      (*cache).start_scatter(copies(), {layer, layer + 1}, stream);
  if (!copies_of_layer) return refused(copies_of_layer.error());
  started.add(layer, *std::move(copies_of_layer));
  return {};
}

// Reads the block again, because layers were loaded out of order or in pieces.
std::uint64_t Client::LayerLoad::Impl::hash_in_pool(std::size_t block) const {
  memory::FusedHash hash(pool::padded_bytes(cache.cache().geometry().block_bytes()));
  memory::Line lines[64];
  for (const memory::Extent& extent : extents.of(block)) {
    for (std::uint64_t at = 0; at < extent.bytes; at += sizeof lines) {
      const std::uint64_t bytes = std::min<std::uint64_t>(sizeof lines, extent.bytes - at);
      session->access().domain().read_bulk(lines, extent.at + at, bytes, &hash);
    }
  }
  return hash.finish();
}

void Client::LayerLoad::Impl::check_bytes() {
  const bool runs_along = layers.is_in_order() && !hashes.empty();
  for (std::size_t i = 0; i < hit.found().size(); ++i) {
    if (!hit.read.has_checksum(i)) continue;
    hit.read.check_bytes(i, runs_along ? hashes[i].finish() : hash_in_pool(i));
  }
}

Result<std::size_t> Client::LayerLoad::Impl::load_layer(std::uint32_t layer) {
  CACHALOT_TRY(session->check_usable());
  const KvGeometry& geometry = cache.cache().geometry();
  CACHALOT_TRY(check_layer(layer, geometry));
  layers.begin(layer);
  if (const Status copied = started.has(layer) ? started.wait(layer) : copy(layer); !copied)
    return refused(copied.error());
  Counters::add(session->counters().copied_bytes, hit.found().size() * geometry.layer_bytes());
  const bool was_complete = !layers.first_missing();
  layers.finish(layer);
  const bool completes = !was_complete && !layers.first_missing();
  if (completes) check_bytes();
  const auto [valid, stale, is_damaged] = hit.read.validate(pin.has_value());
  Counters::add(session->counters().stale_blocks, stale);
  if (is_damaged) session->note_damage(hit.room[valid].entry);
  hit.shorten_to_whole();
  const std::size_t loaded = hit.found().size();
  if (completes) {
    session->report_hits(hit.deepest());
    session->prompts().end_load(counted, hit.blocks());
    Counters::add(session->counters().loads, 1);
    Counters::add(session->counters().loaded_blocks, loaded);
    Counters::add(session->counters().loaded_bytes, loaded * geometry.block_bytes());
  }
  if (completes || loaded == 0) {
    // Waits for the remaining copies: once closed, the cache may be unregistered.
    if (!started.empty()) CACHALOT_TRY(started.wait_for_all());
    cache.close();
    pin.reset();
  }
  return hit.blocks();
}

Client::LayerLoad::LayerLoad(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::LayerLoad::LayerLoad(LayerLoad&&) noexcept = default;
Client::LayerLoad& Client::LayerLoad::operator=(LayerLoad&&) noexcept = default;
Client::LayerLoad::~LayerLoad() = default;
std::size_t Client::LayerLoad::blocks() const {
  return impl_->hit.blocks();
}
Status Client::LayerLoad::start_layer(std::uint32_t layer) {
  return impl_->start_layer(layer);
}
Result<std::size_t> Client::LayerLoad::load_layer(std::uint32_t layer) {
  return impl_->load_layer(layer);
}

// --- Store -------------------------------------------------------------------------------------

Result<std::unique_ptr<Client::LayerStore::Impl>> Client::LayerStore::Impl::begin(
    const client::Call& call, client::OpenCache cache, const BlockHash* parent,
    bool layers_are_stretches) {
  CACHALOT_TRY(call.check());
  const KvGeometry& geometry = cache.cache().geometry();
  const std::size_t count = call.hashes.size();
  if (count == 0 || count > pool::kMaxCommitItems) {
    return Error::make(Code::kInvalidArgument, "store: %zu blocks layer by layer, expected 1 to %u",
                       count, pool::kMaxCommitItems);
  }
  const std::uint32_t groups = call.cache.groups().count;
  if (count * groups > kMostPoolBlocks) {
    return Error::make(Code::kInvalidArgument,
                       "store: %zu blocks of %u head groups layer by layer, expected at most %u "
                       "(share_tp)",
                       count, groups, kMostPoolBlocks / groups);
  }
  if (geometry.layer_bytes() % kLineBytes != 0) {
    return Error::make(Code::kUnsupported,
                       "store: a layer of a block has %llu bytes, which do not fill whole lines of "
                       "64: store whole blocks",
                       static_cast<unsigned long long>(geometry.layer_bytes()));
  }
  std::unique_ptr<Impl> impl(
      new Impl{call.session.shared_from_this(), std::move(cache), call.stream});
  impl->pages.assign(call.pages.begin(), call.pages.end());
  impl->layers = client::LayerSequence(geometry.layers);
  const bool has_sums = layers_are_stretches && call.session.writes_checksums();
  call.session.prompts().store(call.hashes);
  for (std::uint32_t i = 0; i < call.cache.groups().count; ++i)
    CACHALOT_TRY(impl->add_chain(call, parent, i, has_sums));
  return impl;
}

// Reserves what is not in the pool of one head group.
Status Client::LayerStore::Impl::add_chain(const client::Call& call, const BlockHash* parent,
                                           std::uint32_t group, bool has_sums) {
  const client::HeadGroups& groups = call.cache.groups();
  const auto names = client::PoolNames::of_group(groups, group, call.hashes);
  const KvGeometry& geometry = cache.cache().geometry();
  Chain& chain = chains.emplace_back();
  chain.hashes.assign(names.get().begin(), names.get().end());
  if (parent != nullptr) chain.parent = groups.name_of(*parent, group);
  client::make_way(*session, chain.hashes, client::Deadline{});
  chain.present = client::look_up(*session, nullptr, chain.hashes, geometry.block_bytes()).blocks();
  const std::size_t missing = chain.hashes.size() - chain.present;
  if (missing == 0) return {};
  CACHALOT_TRY_ASSIGN(chain.reservation, session->reserve(static_cast<std::uint32_t>(missing)));
  for (const pool::BlockUse& use : chain.uses())
    chain.extents.add(session->access(), use.block, geometry.block_bytes());
  chain.sums = layer_hashes(geometry, chain.uses().size(), has_sums);
  return {};
}

// Waits for the copies before the cache is closed and before the blocks are returned.
Client::LayerStore::Impl::~Impl() {
  if (session->is_forked()) {
    started.abandon();
    // The blocks are the parent's. What they would go back to may be locked by a thread that is not here.
    static_cast<void>(new auto(std::move(chains)));
  } else if (!started.empty()) {
    (void)end_copies(started.wait_for_all());
  }
}

// Rejects calls after finish() or a GPU failure: the reservation is gone.
Status Client::LayerStore::Impl::check_unfinished() const {
  if (is_lost) {
    return Error::make(
        Code::kIo, "store: the GPU failed in a copy into its blocks; nothing of it is published");
  }
  if (!is_finished) return {};
  return Error::make(Code::kInvalidArgument, "store: it was finished already; begin another one");
}

Status Client::LayerStore::Impl::check_not_stored(std::uint32_t layer) const {
  CACHALOT_TRY(session->check_usable());
  CACHALOT_TRY(check_unfinished());
  CACHALOT_TRY(check_layer(layer, cache.cache().geometry()));
  if (!layers.is_done(layer)) return {};
  return Error::make(Code::kInvalidArgument, "layer: %u was stored already", layer);
}

bool Client::LayerStore::Impl::is_all_present() const {
  return std::all_of(chains.begin(), chains.end(),
                     [](const Chain& chain) { return chain.uses().empty(); });
}

client::GroupCopies Client::LayerStore::Impl::copies() {
  const std::uint32_t per_block = cache.pages_per_block();
  client::GroupCopies all;
  for (Chain& chain : chains) {
    std::vector<kv::BlockCopy>& of_group = all.emplace_back();
    for (std::size_t i = 0; i < chain.uses().size(); ++i) {
      kv::BlockCopy copy{chain.extents.of(i),
                         std::span(pages).subspan((chain.present + i) * per_block, per_block)};
      if (layers.is_in_order() && !chain.sums.empty()) copy.hash = &chain.sums[i];
      of_group.push_back(copy);
    }
  }
  return all;
}

Status Client::LayerStore::Impl::copy(std::uint32_t layer) {
  CACHALOT_TRY_ASSIGN(const client::CacheUse use, cache.use());
  CACHALOT_TRY(begin_copies());
  return use->gather(copies(), {layer, layer + 1}, stream);
}

Status Client::LayerStore::Impl::Chain::begin_copies() {
  if (is_open() || uses().empty()) return {};
  auto* const written = std::get_if<pool::WrittenReservation>(&reservation);
  CACHALOT_TRY_ASSIGN(pool::OpenReservation open,
                      written != nullptr
                          ? std::move(*written).begin()
                          : std::move(std::get<pool::Reservation>(reservation)).begin());
  reservation = std::move(open);
  return {};
}

// The reservations are open while a copy is in flight: all of them, or none.
Status Client::LayerStore::Impl::begin_copies() {
  for (Chain& chain : chains) {
    if (const Status begun = chain.begin_copies(); !begun) {
      end_reservations();
      return begun;
    }
  }
  return {};
}

void Client::LayerStore::Impl::end_reservations() {
  for (Chain& chain : chains) {
    if (chain.is_open())
      chain.reservation = std::get<pool::OpenReservation>(std::move(chain.reservation)).end();
  }
}

// After kIo the blocks are withheld. After another error the running checksums may have the layer in some head groups.
Status Client::LayerStore::Impl::end_copies(Status copied) {
  if (!copied) layers.break_order();
  if (!copied && copied.error().code == Code::kIo) {
    if (!started.empty()) (void)started.wait_for_all();
    is_lost = true;
    for (Chain& chain : chains) chain.reservation = pool::Reservation();  // drops the open one
  } else if (started.empty()) {
    end_reservations();
  }
  return copied;
}

Status Client::LayerStore::Impl::start_layer(std::uint32_t layer) {
  CACHALOT_TRY(check_not_stored(layer));
  if ((*cache).gpu() == nullptr || is_all_present()) return {};
  if (started.has(layer)) return started_already(layer);
  CACHALOT_TRY((*cache).check_stream(stream));
  CACHALOT_TRY(begin_copies());
  Result<client::StartedCopies> copies_of_layer =
      (*cache).start_gather(copies(), {layer, layer + 1}, stream);
  if (!copies_of_layer) return end_copies(copies_of_layer.error());
  started.add(layer, *std::move(copies_of_layer));
  return {};
}

Status Client::LayerStore::Impl::store_layer(std::uint32_t layer) {
  CACHALOT_TRY(check_not_stored(layer));
  if (!started.has(layer)) CACHALOT_TRY((*cache).check_stream(stream));
  layers.begin(layer);
  if (!is_all_present())
    CACHALOT_TRY(end_copies(started.has(layer) ? started.wait(layer) : copy(layer)));
  for (const Chain& chain : chains) {
    Counters::add(session->counters().copied_bytes,
                  chain.uses().size() * cache.cache().geometry().layer_bytes());
  }
  layers.finish(layer);
  return {};
}

Result<Stored> Client::LayerStore::Impl::finish() {
  CACHALOT_TRY(session->check_usable());
  CACHALOT_TRY(check_unfinished());
  while (!started.empty()) CACHALOT_TRY(store_layer(started.first()));
  if (const std::optional<std::uint32_t> missing = layers.first_missing()) {
    return Error::make(Code::kInvalidArgument, "store: layer %u was not stored", *missing);
  }
  is_finished = true;
  cache.close();
  std::vector<client::ChainProgress> progress;
  for (const Chain& chain : chains) progress.emplace_back(chain.hashes.size());
  Status status;
  for (std::size_t i = 0; i < chains.size() && status; ++i) status = commit(chains[i], progress[i]);
  Counters& counters = session->counters();
  Counters::add(counters.stores, 1);
  for (const client::ChainProgress& chain : progress) {
    const std::size_t written = chain.written();
    Counters::add(counters.stored_blocks, written);
    Counters::add(counters.stored_bytes, written * cache.cache().geometry().block_bytes());
    Counters::add(counters.duplicate_blocks, chain.blocks - written);
  }
  if (!status) return status.error();
  return client::stored_of(progress);
}

Status Client::LayerStore::Impl::commit(Chain& chain, client::ChainProgress& progress) {
  const std::size_t present = progress.blocks = chain.present;
  const std::size_t count = chain.uses().size();
  std::vector<pool::WrittenBlock> written(count);
  for (std::size_t i = 0; i < count; ++i) {
    written[i].hash = chain.hashes[present + i];
    written[i].length = static_cast<std::uint32_t>(cache.cache().geometry().block_bytes());
    if (layers.is_in_order() && !chain.sums.empty()) written[i].checksum = chain.sums[i].finish();
  }
  const BlockHash* const before = present != 0   ? &chain.hashes[present - 1]
                                  : chain.parent ? &*chain.parent
                                                 : nullptr;
  std::vector<pool::Verdict> verdicts(count, pool::Verdict::kNotHeld);
  if (count != 0) {
    CACHALOT_TRY(session->commit(
        before, std::get<pool::WrittenReservation>(std::exchange(chain.reservation, {})), written,
        verdicts));
  }
  const bool is_taken = progress.take(verdicts);
  if (is_taken && progress.blocks != chain.hashes.size()) progress.reason = Code::kNoSpace;
  return {};
}

Client::LayerStore::LayerStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::LayerStore::LayerStore(LayerStore&&) noexcept = default;
Client::LayerStore& Client::LayerStore::operator=(LayerStore&&) noexcept = default;
Client::LayerStore::~LayerStore() = default;
Status Client::LayerStore::start_layer(std::uint32_t layer) {
  return impl_->start_layer(layer);
}
Status Client::LayerStore::store_layer(std::uint32_t layer) {
  return impl_->store_layer(layer);
}
Result<Stored> Client::LayerStore::finish() {
  return impl_->finish();
}

}  // namespace cachalot

#include "client/layers/layerwise.h"

#include <algorithm>

namespace cachalot {
namespace {

using client::Counters;
using memory::kLineBytes;

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
  client::Hit hit =
      client::look_up(call.session, &call.counters, call.hashes, geometry.block_bytes());
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
  return impl;
}

// Waits for the copies before the cache and the checksums are destroyed.
Client::LayerLoad::Impl::~Impl() {
  if (session->is_forked()) {
    started.abandon();
  } else if (!started.empty()) {
    (void)started.wait_for_all(*(*cache).gpu());
  }
}

std::vector<kv::BlockCopy> Client::LayerLoad::Impl::copies() {
  const std::uint32_t per_block = cache.pages_per_block();
  std::vector<kv::BlockCopy> all;
  for (std::size_t i = 0; i < hit.found().size(); ++i) {
    kv::BlockCopy copy{extents.of(i), std::span(pages).subspan(i * per_block, per_block)};
    if (layers.is_in_order() && !hashes.empty()) copy.hash = &hashes[i];
    all.push_back(copy);
  }
  return all;
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
  CACHALOT_TRY_ASSIGN(kv::PendingCopy copy,
                      (*cache).start_scatter(copies(), {layer, layer + 1}, stream));
  started.add(layer, std::move(copy));
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
  CACHALOT_TRY(started.has(layer) ? started.wait(*(*cache).gpu(), layer) : copy(layer));
  const bool was_complete = !layers.first_missing();
  layers.finish(layer);
  const bool completes = !was_complete && !layers.first_missing();
  if (completes) check_bytes();
  const auto [valid, stale, is_damaged] = hit.read.validate(pin.has_value());
  Counters::add(session->counters().stale_blocks, stale);
  if (is_damaged) session->note_damage(hit.room[valid].entry);
  if (completes) {
    if (valid != 0) session->report_hit(hit.found().back());
    Counters::add(session->counters().loads, 1);
    Counters::add(session->counters().loaded_blocks, valid);
    Counters::add(session->counters().loaded_bytes, valid * geometry.block_bytes());
  }
  if (completes || valid == 0) {
    // Waits for the remaining copies: once closed, the cache may be unregistered.
    if (!started.empty()) CACHALOT_TRY(started.wait_for_all(*(*cache).gpu()));
    cache.close();
    pin.reset();
  }
  return valid;
}

Client::LayerLoad::LayerLoad(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::LayerLoad::LayerLoad(LayerLoad&&) noexcept = default;
Client::LayerLoad& Client::LayerLoad::operator=(LayerLoad&&) noexcept = default;
Client::LayerLoad::~LayerLoad() = default;
std::size_t Client::LayerLoad::blocks() const {
  return impl_->hit.found().size();
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
  if (geometry.layer_bytes() % kLineBytes != 0) {
    return Error::make(Code::kUnsupported,
                       "store: a layer of a block has %llu bytes, which do not fill whole lines of "
                       "64: store whole blocks",
                       static_cast<unsigned long long>(geometry.layer_bytes()));
  }
  std::unique_ptr<Impl> impl(
      new Impl{call.session.shared_from_this(), std::move(cache), call.stream});
  impl->hashes.assign(call.hashes.begin(), call.hashes.end());
  impl->pages.assign(call.pages.begin(), call.pages.end());
  if (parent != nullptr) impl->parent = *parent;
  impl->layers = client::LayerSequence(geometry.layers);
  client::make_way(call.session, call.hashes, client::Deadline{});
  impl->present =
      client::look_up(call.session, nullptr, call.hashes, geometry.block_bytes()).found().size();
  if (impl->present == count) return impl;
  CACHALOT_TRY_ASSIGN(impl->reservation,
                      call.session.reserve(static_cast<std::uint32_t>(count - impl->present)));
  for (const pool::BlockUse& use : impl->uses()) {
    impl->extents.add(call.session.access(), use.block, geometry.block_bytes());
  }
  impl->sums = layer_hashes(geometry, impl->uses().size(),
                            layers_are_stretches && call.session.writes_checksums());
  return impl;
}

// Waits for the copies before the cache is closed and before the blocks are returned.
Client::LayerStore::Impl::~Impl() {
  if (session->is_forked()) {
    started.abandon();
    // The blocks are the parent's. What they would go back to may be locked by a thread that is not here.
    static_cast<void>(new auto(std::move(reservation)));
  } else if (!started.empty()) {
    (void)end_copies(started.wait_for_all(*(*cache).gpu()));
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

std::vector<kv::BlockCopy> Client::LayerStore::Impl::copies() {
  const std::uint32_t per_block = cache.pages_per_block();
  std::vector<kv::BlockCopy> all;
  for (std::size_t i = 0; i < uses().size(); ++i) {
    kv::BlockCopy copy{extents.of(i),
                       std::span(pages).subspan((present + i) * per_block, per_block)};
    if (layers.is_in_order() && !sums.empty()) copy.hash = &sums[i];
    all.push_back(copy);
  }
  return all;
}

Status Client::LayerStore::Impl::copy(std::uint32_t layer) {
  CACHALOT_TRY_ASSIGN(const client::CacheUse use, cache.use());
  CACHALOT_TRY(begin_copies());
  return use->gather(copies(), {layer, layer + 1}, stream);
}

// The reservation is open while a copy is in flight.
Status Client::LayerStore::Impl::begin_copies() {
  if (std::holds_alternative<pool::OpenReservation>(reservation)) return {};
  auto* const written = std::get_if<pool::WrittenReservation>(&reservation);
  CACHALOT_TRY_ASSIGN(pool::OpenReservation open,
                      written != nullptr
                          ? std::move(*written).begin()
                          : std::move(std::get<pool::Reservation>(reservation)).begin());
  reservation = std::move(open);
  return {};
}

// After kIo the blocks are withheld.
Status Client::LayerStore::Impl::end_copies(Status copied) {
  if (!copied && copied.error().code == Code::kIo) {
    if (!started.empty()) (void)started.wait_for_all(*(*cache).gpu());
    is_lost = true;
    reservation = pool::Reservation();  // drops the open one
  } else if (auto* const open = std::get_if<pool::OpenReservation>(&reservation);
             open != nullptr && started.empty()) {
    reservation = std::move(*open).end();
  }
  return copied;
}

Status Client::LayerStore::Impl::start_layer(std::uint32_t layer) {
  CACHALOT_TRY(check_not_stored(layer));
  if ((*cache).gpu() == nullptr || uses().empty()) return {};
  if (started.has(layer)) return started_already(layer);
  CACHALOT_TRY((*cache).check_stream(stream));
  CACHALOT_TRY(begin_copies());
  Result<kv::PendingCopy> copy = (*cache).start_gather(copies(), {layer, layer + 1}, stream);
  if (!copy) return end_copies(copy.error());
  started.add(layer, *std::move(copy));
  return {};
}

Status Client::LayerStore::Impl::store_layer(std::uint32_t layer) {
  CACHALOT_TRY(check_not_stored(layer));
  if (!started.has(layer)) CACHALOT_TRY((*cache).check_stream(stream));
  layers.begin(layer);
  if (!uses().empty()) {
    CACHALOT_TRY(
        end_copies(started.has(layer) ? started.wait(*(*cache).gpu(), layer) : copy(layer)));
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
  const KvGeometry& geometry = cache.cache().geometry();
  Stored result;
  result.blocks = present;
  const std::size_t count = uses().size();
  if (count != hashes.size() - present) result.reason = Code::kNoSpace;
  if (count == 0) return result;
  std::vector<pool::WrittenBlock> written(count);
  for (std::size_t i = 0; i < count; ++i) {
    written[i].hash = hashes[present + i];
    written[i].length = static_cast<std::uint32_t>(geometry.block_bytes());
    if (layers.is_in_order() && !sums.empty()) written[i].checksum = sums[i].finish();
  }
  const BlockHash* const before = present != 0 ? &hashes[present - 1] : parent ? &*parent : nullptr;
  std::vector<pool::Verdict> verdicts(count, pool::Verdict::kNotHeld);
  const Status status =
      session->commit(before, std::get<pool::WrittenReservation>(std::exchange(reservation, {})),
                      written, verdicts);
  const std::size_t duplicates = client::take_verdicts(verdicts, result) - result.written;
  Counters::add(session->counters().stores, 1);
  Counters::add(session->counters().stored_blocks, result.written);
  Counters::add(session->counters().stored_bytes, result.written * geometry.block_bytes());
  Counters::add(session->counters().duplicate_blocks, present + duplicates);
  if (!status) return status.error();
  return result;
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

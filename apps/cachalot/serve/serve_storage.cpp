#include "serve_storage.h"

#include <chrono>
#include <condition_variable>

#include "base/log.h"
#include "base/words.h"

namespace cachalot::apps {
namespace {

constexpr auto kGrace = std::chrono::seconds(2);

// Of all stores.
node::StorageFigures read_figures(node::Archive& archive) {
  const node::ArchiveCounts moved = archive.counts();
  node::StorageFigures figures;
  figures.is_up = moved.is_up;
  figures.queued_blocks = moved.queued_blocks;
  figures.queued_fetches = moved.queued_fetches;
  figures.fetched_blocks = moved.fetched_blocks;
  figures.fetched_bytes = moved.fetched_bytes;
  figures.unused_blocks = moved.unused_blocks;
  figures.lost_blocks = moved.lost_blocks;
  figures.skipped_blocks = moved.skipped_blocks;
  for (std::size_t i = 0; i < archive.stores(); ++i) {
    const storage::Store& store = archive.store(i);
    const storage::StoreCounts stored = store.counts();
    figures.objects += store.catalogue().objects();
    figures.bytes += store.catalogue().bytes();
    figures.written_blocks += stored.put_objects;
    figures.written_bytes += stored.put_bytes;
    figures.read_bytes += stored.got_bytes;
    figures.evicted_blocks += stored.evicted_objects;
    figures.over_budget_blocks += stored.over_budget_puts;
    figures.missing_blocks += stored.missing_objects;
    figures.damaged_blocks += stored.damaged_objects;
    figures.asked_blocks += stored.asked_objects;
    figures.learned_blocks += stored.learned_objects;
    figures.failed_reads += stored.failed_gets;
    figures.failed_writes += stored.failed_puts;
    figures.outages += stored.outages;
  }
  return figures;
}

node::PeerFigures read_figures(const node::Peers& peers) {
  const node::PeersCounts counts = peers.counts();
  return {counts.peers,
          counts.known_blocks,
          counts.followers,
          counts.got_blocks,
          counts.got_bytes,
          counts.absent_blocks,
          counts.failed_requests,
          counts.served.served_blocks,
          counts.served.served_bytes,
          counts.served.refused_requests,
          counts.told_changes};
}

}  // namespace

ServedStorage::~ServedStorage() {
  end();
}

Status ServedStorage::prepare(Keeper role) {
  if (!is_wanted()) return {};
  CACHALOT_TRY_ASSIGN(store_options_.limits, flags_.limits());
  CACHALOT_TRY_ASSIGN(store_options_.write_bytes_per_day, flags_.write_bytes_per_day());
  CACHALOT_TRY_ASSIGN(options_.policy, flags_.policy());
  CACHALOT_TRY_ASSIGN(peers_options_, peer_flags_.options());
  for (const std::string& uri : flags_.uris)
    CACHALOT_TRY(storage::check_backend(uri, flags_.secrets()));
  backends_.resize(flags_.uris.size());
  if (role == Keeper::kStandsBy) return {};
  if (peer_flags_.is_given() &&
      role == Keeper::kFirst) {  // a keeper that is taken over from listens there
    const Status listens = node::Peers::check_listen(peers_options_);
    if (!listens)
      return Error::make(listens.error().code, "--peer-listen: %s", listens.error().message);
  }
  for (std::size_t i = 0; i < backends_.size(); ++i) {
    Result<std::unique_ptr<storage::Backend>> opened =
        storage::open_backend(flags_.uris[i], flags_.secrets());
    if (!opened && role == Keeper::kTakesOver && opened.error().code == Code::kBusy) continue;
    if (!opened) return opened.error();
    backends_[i] = *std::move(opened);
  }
  return {};
}

Status ServedStorage::start(pool::Pool& pool, pool::Keeper& keeper, node::MetricsServer* metrics) {
  if (!is_wanted()) return {};
  if (peer_flags_.is_given()) {
    CACHALOT_TRY_ASSIGN(peers_, node::Peers::open(pool.access(), peers_options_));
    base::log(base::LogLevel::kInfo, "peers", "other hosts reach this pool at %s",
              peers_->addresses().front().c_str());
  }
  pool_ = &pool;
  keeper_ = &keeper;
  metrics_ = metrics;
  thread_ = std::thread([this] { open(); });
  return {};
}

// Tries until it works. @return null: the keeper ends
std::unique_ptr<storage::Backend> ServedStorage::open_in_the_end(const std::string& uri) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  constexpr int kPauses = 100;
  bool is_told = false;
  while (!is_stopping()) {
    Result<std::unique_ptr<storage::Backend>> opened = storage::open_backend(uri, flags_.secrets());
    if (opened) return *std::move(opened);
    if (!std::exchange(is_told, true))
      base::log(base::LogLevel::kWarn, "storage", "not in use yet: %s", opened.error().message);
    for (int i = 0; i < kPauses && !is_stopping(); ++i) std::this_thread::sleep_for(kPause);
  }
  return {};
}

// Lists what is there.
void ServedStorage::add(std::unique_ptr<storage::Backend> backend, bool is_late) {
  {
    const std::lock_guard lock(mutex_);
    if (auto cancel = backend->cancel_signal()) {
      if (is_stopping()) cancel->raise();
      cancels_.push_back(std::move(cancel));
    }
  }
  std::unique_ptr<storage::Store> store =
      storage::Store::make(std::move(backend), store_options_, [this] { return is_stopping(); });
  if (is_late || store->traits().is_listed) {
    base::log(base::LogLevel::kInfo, "storage", "%s: has %s", store->traits().name.c_str(),
              base::counted(store->catalogue().objects(), "block").c_str());
  }
  const std::lock_guard lock(mutex_);
  stores_.push_back(std::move(store));
}

// A predecessor that hangs still owns its directory: it is tried again until that process has ended.
void ServedStorage::open() {
  if (peers_) add(node::make_peer_backend(*peers_), false);
  for (std::size_t i = 0; i < backends_.size(); ++i) {
    const bool is_late = backends_[i] == nullptr;
    if (is_late) backends_[i] = open_in_the_end(flags_.uris[i]);
    if (backends_[i] == nullptr) return;
    add(std::move(backends_[i]), is_late);
  }
  const std::lock_guard lock(mutex_);
  is_ready_ = true;
}

void ServedStorage::join_when_ready() {
  if (archive_ || keeper_ == nullptr) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !is_ready_) return;
  base::log(base::LogLevel::kInfo, "storage", "in use");
  archive_.emplace(*pool_, *keeper_, std::move(stores_), options_);
  if (peers_) {
    keeper_->observe(peers_->observer());
    peers_->observer().on_repaired();  // what was published before it was told
  }
  if (metrics_ == nullptr) return;
  metrics_->show_storage([this] { return read_figures(*archive_); });
  if (peers_) metrics_->show_peers([this] { return read_figures(*peers_); });
}

void ServedStorage::end() {
  stop_.store(true, std::memory_order_relaxed);
  if (!archive_) {  // nothing waits to be written
    const std::lock_guard lock(mutex_);
    for (const auto& cancel : cancels_) cancel->raise();
  }
  // What a server still answers is kept; one that hangs is not waited for.
  const std::jthread canceller([this](const std::stop_token& ended) {
    std::unique_lock lock(mutex_);
    std::condition_variable_any never;
    if (never.wait_for(lock, ended, kGrace, [] { return false; }) || ended.stop_requested()) return;
    for (const auto& cancel : cancels_) cancel->raise();
  });
  if (thread_.joinable()) thread_.join();
  if (metrics_ != nullptr) {
    metrics_->show_storage({});
    metrics_->show_peers({});
  }
  if (archive_ && peers_) keeper_->end_observing(peers_->observer());
  archive_.reset();
  stores_.clear();
  peers_.reset();
}

}  // namespace cachalot::apps

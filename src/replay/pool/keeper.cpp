#include "replay/pool/keeper.h"

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/words.h"
#include "node/archive/archive.h"
#include "node/peers/peers.h"
#include "os/limits.h"
#include "pool/pool.h"
#include "replay/pool/host_network.h"
#include "storage/backends.h"

namespace cachalot::replay {
namespace {

using base::SteadyClock;

constexpr std::uint64_t kPatienceNs = 5'000'000'000;
constexpr std::uint64_t kPeerPatienceNs = 30'000'000'000;  // many processes start
constexpr std::uint64_t kLookPauseNs = 50'000'000;

// Storage that is down may come back while a keeper serves, but a replay would measure nothing.
Result<std::unique_ptr<storage::Store>> open_store(const ReplayOptions& options,
                                                   const std::string& uri, SourceMarks* marks) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<storage::Backend> backend,
                      storage::open_backend(uri, options.storage.secrets));
  if (options.host_count() > 1 && !backend->traits().is_shared) {
    return Error::make(Code::kInvalidArgument,
                       "--storage: %.120s is of one host, expected storage that several hosts "
                       "share: redis, s3, or "
                       "a plug-in that says so",
                       uri.c_str());
  }
  const storage::ObjectKey none{};
  bool is_there = false;
  CACHALOT_TRY(backend->exists({&none, 1}, {&is_there, 1}, SteadyClock::read() + kPatienceNs));
  if (marks != nullptr) backend = make_marking(std::move(backend), *marks, BlockSource::kStorage);
  return storage::Store::make(std::move(backend),
                              {.limits = options.storage.limits,
                               .write_bytes_per_day = options.storage.write_bytes_per_day});
}

Result<std::unique_ptr<node::Peers>> open_peers(const pool::Pool& pool, bool has_network,
                                                std::uint32_t host, const HostPlace& place) {
  node::PeersOptions options;
  options.registry = place.peer_registry;
  options.name = "host-" + std::to_string(host);
  options.listen = {"tcp:" + (has_network ? network_address(host) : "127.0.0.1") + ":0"};
  options.look_pause_ns = kLookPauseNs;
  return node::Peers::open(pool.access(), options);
}

std::unique_ptr<storage::Store> store_of(node::Peers& peers, SourceMarks* marks) {
  std::unique_ptr<storage::Backend> backend = node::make_peer_backend(peers);
  if (marks != nullptr) backend = make_marking(std::move(backend), *marks, BlockSource::kPeers);
  return storage::Store::make(std::move(backend), {});
}

// Both ways: they are followed, and follow.
Status wait_for(const node::Peers& peers, std::uint64_t count) {
  const std::uint64_t until_ns = SteadyClock::read() + kPeerPatienceNs;
  for (;;) {
    const node::PeersCounts counts = peers.counts();
    if (counts.peers >= count && counts.followers >= count) return {};
    if (SteadyClock::read() >= until_ns) {
      return Error::make(Code::kTimeout, "peers: %llu of %llu are there after %llu s",
                         static_cast<unsigned long long>(std::min(counts.peers, counts.followers)),
                         static_cast<unsigned long long>(count),
                         static_cast<unsigned long long>(kPeerPatienceNs / 1'000'000'000));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// While it lives, peers hear of the keeper's changes. The keeper does not run when it begins and ends.
class TellsPeers {
 public:
  TellsPeers(pool::Keeper& keeper, node::Peers& peers) : keeper_(keeper), peers_(peers) {
    keeper_.observe(peers_.observer());
    peers_.observer().on_repaired();  // what was published before
  }
  ~TellsPeers() { keeper_.end_observing(peers_.observer()); }
  TellsPeers(const TellsPeers&) = delete;
  TellsPeers& operator=(const TellsPeers&) = delete;

 private:
  pool::Keeper& keeper_;
  node::Peers& peers_;
};

// Answers each HarnessState::news_round.
std::jthread answer_news(const node::Peers& peers, const HarnessState& harness, PeerNews& news) {
  return std::jthread([&](const std::stop_token& stop) {
    constexpr auto kNap = std::chrono::microseconds(50);
    while (!stop.stop_requested()) {
      const std::uint64_t round = harness.news_round.load(std::memory_order_acquire);
      if (round == news.round.load(std::memory_order_relaxed)) {
        std::this_thread::sleep_for(kNap);
        continue;
      }
      const node::PeersCounts counts = peers.counts();
      news.told.store(counts.told_changes, std::memory_order_relaxed);
      news.heard.store(counts.heard_changes, std::memory_order_relaxed);
      news.untold.store(counts.untold_changes, std::memory_order_relaxed);
      news.round.store(round, std::memory_order_release);
    }
  });
}

// Of the stores that are written: not of peers.
StorageCounters count_storage(node::Archive& archive) {
  const node::ArchiveCounts moved = archive.counts();
  StorageCounters counters;
  counters.fetched_blocks = moved.fetched_blocks;
  counters.unused_blocks = moved.unused_blocks;
  counters.lost_blocks = moved.lost_blocks + moved.skipped_blocks;
  for (std::size_t i = 0; i < archive.stores(); ++i) {
    if (!archive.store(i).traits().is_written) continue;
    const storage::StoreCounts stored = archive.store(i).counts();
    counters.written_bytes += stored.put_bytes;
    counters.read_bytes += stored.got_bytes;
    counters.evicted_blocks += stored.evicted_objects;
    counters.failed_blocks += stored.failed_puts + stored.failed_gets;
    counters.damaged_blocks += stored.damaged_objects;
  }
  return counters;
}

PeerCounters count_peers(const node::Peers& peers) {
  const node::PeersCounts counts = peers.counts();
  return {counts.got_blocks, counts.got_bytes, counts.absent_blocks, counts.failed_requests};
}

Status check_have_worked(node::Archive& archive) {
  for (std::size_t i = 0; i < archive.stores(); ++i) {
    if (!archive.store(i).traits().is_written) continue;
    const storage::StoreCounts counts = archive.store(i).counts();
    const std::uint64_t failed = counts.failed_puts + counts.failed_gets;
    if (failed == 0 || counts.put_objects + counts.got_objects != 0) continue;
    return Error::make(Code::kIo, "storage: %s failed, expected some to be written or read",
                       base::counted(failed, "block").c_str());
  }
  return {};
}

}  // namespace

Status keep(const ReplayOptions& options, std::uint32_t host, const HostPlace& place,
            HarnessState& harness) {
  HostState& state = harness.hosts[host];
  (void)os::raise_descriptor_limit();
  CACHALOT_TRY_ASSIGN(pool::Pool pool, pool::Pool::open(place.pool_paths));
  pool::KeeperOptions keeper_options;
  keeper_options.policy = options.policy;
  keeper_options.copies_first = options.hosts.has_peers && !options.hosts.keeps_copies;
  std::vector<std::unique_ptr<storage::Store>> stores;
  for (const std::string& uri : options.storage.uris) {
    CACHALOT_TRY_ASSIGN(std::unique_ptr<storage::Store> store,
                        open_store(options, uri, place.marks));
    stores.push_back(std::move(store));
  }
  state.has_opened.store(true, std::memory_order_release);
  if (options.hosts.has_networks) CACHALOT_TRY(enter_network(options, host, harness));
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, pool.serve(keeper_options));
  std::unique_ptr<node::Peers> peers;  // the archive reads from it
  if (!place.peer_registry.empty()) {
    CACHALOT_TRY_ASSIGN(peers, open_peers(pool, options.hosts.has_networks, host, place));
    stores.insert(stores.begin(), store_of(*peers, place.marks));
  }
  std::optional<node::Archive> archive;
  if (!stores.empty()) {
    node::ArchiveOptions archiving;
    archiving.policy = options.storage.write_policy;
    archive.emplace(pool, keeper.keeper(), std::move(stores), archiving);
  }
  std::optional<TellsPeers> tells;
  std::optional<std::jthread> news;
  if (peers != nullptr) {
    tells.emplace(keeper.keeper(), *peers);
    CACHALOT_TRY(wait_for(*peers, options.host_count() - 1));
    if (options.hosts.is_in_order) news.emplace(answer_news(*peers, harness, state.news));
  }
  state.keeper.is_ready.store(true, std::memory_order_release);
  CACHALOT_TRY(keeper.run(harness.keepers_must_end));
  state.keeper_counters = keeper.keeper().counters();
  if (peers != nullptr) state.peers = count_peers(*peers);
  if (!archive) return {};
  state.storage = count_storage(*archive);
  return check_have_worked(*archive);
}

}  // namespace cachalot::replay

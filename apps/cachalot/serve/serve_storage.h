// What lies behind the pool of `cachalot serve`, storage and the pools of other hosts: opened beside the keeper, which serves
// meanwhile.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "node/archive/archive.h"
#include "node/metrics/metrics_server.h"
#include "node/peers/peers.h"
#include "peer_flags.h"
#include "storage_flags.h"

namespace cachalot::apps {

// @threads the keeper's
class ServedStorage {
 public:
  ServedStorage(const StorageFlags& flags, const PeerFlags& peers)
      : flags_(flags), peer_flags_(peers) {}
  ~ServedStorage();
  ServedStorage(const ServedStorage&) = delete;
  ServedStorage& operator=(const ServedStorage&) = delete;

  enum class Keeper { kFirst, kStandsBy, kTakesOver };
  // Checks the flags and opens the backends. One that an older keeper may still have is opened by start(), when that
  // keeper's process has ended.
  // @errors those of the flags and of the backends
  Status prepare(Keeper role);
  // Listens for other hosts, and begins to list what is stored. The keeper serves.
  // @param metrics  shows the storage once it has joined; null: none
  // @errors those of node::Peers::open()
  Status start(pool::Pool& pool, pool::Keeper& keeper, node::MetricsServer* metrics);
  // To be called now and then: joins the storage to the keeper when it is ready.
  void join_when_ready();
  // Before the keeper's end; again: nothing. I/O in flight may end within two seconds, then it is cancelled.
  void end();

 private:
  bool is_wanted() const { return !flags_.uris.empty() || peer_flags_.is_given(); }
  bool is_stopping() const { return stop_.load(std::memory_order_relaxed); }
  void open();
  std::unique_ptr<storage::Backend> open_in_the_end(const std::string& uri);
  void add(std::unique_ptr<storage::Backend> backend, bool is_late);

  const StorageFlags& flags_;
  const PeerFlags& peer_flags_;
  node::PeersOptions peers_options_;
  storage::StoreOptions store_options_;
  node::ArchiveOptions options_;
  std::vector<std::unique_ptr<storage::Backend>> backends_;  // null: to be opened later
  pool::Pool* pool_ = nullptr;
  pool::Keeper* keeper_ = nullptr;
  node::MetricsServer* metrics_ = nullptr;
  std::unique_ptr<node::Peers> peers_;  // the archive reads from it
  std::optional<node::Archive> archive_;

  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // below
  std::vector<std::unique_ptr<storage::Store>> stores_;
  bool is_ready_ = false;  // all of them
  std::vector<std::shared_ptr<storage::CancelSignal>> cancels_;
};

}  // namespace cachalot::apps

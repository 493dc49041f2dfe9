// The storage behind the pool of `cachalot serve`: opened beside the keeper, which serves meanwhile.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "node/archive/archive.h"
#include "node/metrics/metrics_server.h"
#include "storage_flags.h"

namespace cachalot::apps {

// @threads the keeper's
class ServedStorage {
 public:
  explicit ServedStorage(const StorageFlags& flags) : flags_(flags) {}
  ~ServedStorage();
  ServedStorage(const ServedStorage&) = delete;
  ServedStorage& operator=(const ServedStorage&) = delete;

  enum class Keeper { kFirst, kStandsBy, kTakesOver };
  // Checks the flags and opens the backend. One that an older keeper may still have is opened by start(), when that
  // keeper's process has ended.
  // @errors those of the flags and of the backend
  Status prepare(Keeper role);
  // Begins to list what is stored. The keeper serves.
  // @param metrics  shows the storage once it has joined; null: none
  void start(pool::Pool& pool, pool::Keeper& keeper, node::MetricsServer* metrics);
  // To be called now and then: joins the storage to the keeper when it is ready.
  void join_when_ready();
  // Before the keeper's end. I/O in flight may end within two seconds, then it is cancelled.
  void end();

 private:
  void open();

  const StorageFlags& flags_;
  storage::StoreOptions store_options_;
  node::ArchiveOptions options_;
  std::unique_ptr<storage::Backend> backend_;
  pool::Pool* pool_ = nullptr;
  pool::Keeper* keeper_ = nullptr;
  node::MetricsServer* metrics_ = nullptr;
  std::optional<node::Archive> archive_;

  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // store_, cancel_
  std::unique_ptr<storage::Store> store_;
  std::shared_ptr<storage::CancelSignal> cancel_;
};

}  // namespace cachalot::apps

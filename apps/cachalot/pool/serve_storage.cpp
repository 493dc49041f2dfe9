#include "serve_storage.h"

#include <chrono>
#include <condition_variable>

#include "base/log.h"

namespace cachalot::apps {
namespace {

constexpr auto kGrace = std::chrono::seconds(2);

node::StorageFigures read_figures(node::Archive& archive) {
  const storage::StoreCounts stored = archive.store().counts();
  const node::ArchiveCounts moved = archive.counts();
  node::StorageFigures figures;
  figures.is_up = moved.is_up;
  figures.objects = archive.store().catalogue().objects();
  figures.bytes = archive.store().catalogue().bytes();
  figures.queued_blocks = moved.queued_blocks;
  figures.queued_fetches = moved.queued_fetches;
  figures.written_blocks = stored.put_objects;
  figures.written_bytes = stored.put_bytes;
  figures.fetched_blocks = moved.fetched_blocks;
  figures.fetched_bytes = moved.fetched_bytes;
  figures.read_bytes = stored.got_bytes;
  figures.unused_blocks = moved.unused_blocks;
  figures.evicted_blocks = stored.evicted_objects;
  figures.lost_blocks = moved.lost_blocks;
  figures.skipped_blocks = moved.skipped_blocks;
  figures.over_budget_blocks = stored.over_budget_puts;
  figures.missing_blocks = stored.missing_objects;
  figures.damaged_blocks = stored.damaged_objects;
  figures.failed_reads = stored.failed_gets;
  figures.failed_writes = stored.failed_puts;
  figures.outages = stored.outages;
  return figures;
}

}  // namespace

ServedStorage::~ServedStorage() {
  end();
}

Status ServedStorage::prepare(Keeper role) {
  if (flags_.uri.empty()) return {};
  CACHALOT_TRY_ASSIGN(store_options_.limits, flags_.limits());
  CACHALOT_TRY_ASSIGN(store_options_.write_bytes_per_day, flags_.write_bytes_per_day());
  CACHALOT_TRY_ASSIGN(options_.policy, flags_.policy());
  CACHALOT_TRY(storage::check_backend(flags_.uri, flags_.secrets()));
  if (role == Keeper::kStandsBy) return {};
  Result<std::unique_ptr<storage::Backend>> opened =
      storage::open_backend(flags_.uri, flags_.secrets());
  if (!opened && role == Keeper::kTakesOver && opened.error().code == Code::kBusy) return {};
  if (!opened) return opened.error();
  backend_ = *std::move(opened);
  return {};
}

void ServedStorage::start(pool::Pool& pool, pool::Keeper& keeper, node::MetricsServer* metrics) {
  if (flags_.uri.empty()) return;
  pool_ = &pool;
  keeper_ = &keeper;
  metrics_ = metrics;
  thread_ = std::thread([this] { open(); });
}

// A predecessor that hangs still owns its directory: try again until its process has ended.
void ServedStorage::open() {
  constexpr auto kPause = std::chrono::milliseconds(10);
  constexpr int kPauses = 100;
  bool is_told = false;
  while (backend_ == nullptr && !stop_.load(std::memory_order_relaxed)) {
    Result<std::unique_ptr<storage::Backend>> opened =
        storage::open_backend(flags_.uri, flags_.secrets());
    if (opened) {
      backend_ = *std::move(opened);
      break;
    }
    if (!std::exchange(is_told, true)) {
      base::log(base::LogLevel::kWarn, "storage", "not in use yet: %s", opened.error().message);
    }
    for (int i = 0; i < kPauses && !stop_.load(std::memory_order_relaxed); ++i)
      std::this_thread::sleep_for(kPause);
  }
  if (backend_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    cancel_ = backend_->cancel_signal();
    if (cancel_ && stop_.load(std::memory_order_relaxed)) cancel_->raise();
  }
  std::unique_ptr<storage::Store> store =
      storage::Store::make(std::move(backend_), store_options_,
                           [this] { return stop_.load(std::memory_order_relaxed); });
  if (is_told) {
    base::log(base::LogLevel::kWarn, "storage", "in use now: it has %llu blocks",
              static_cast<unsigned long long>(store->catalogue().objects()));
  }
  const std::lock_guard lock(mutex_);
  store_ = std::move(store);
}

void ServedStorage::join_when_ready() {
  if (archive_ || keeper_ == nullptr) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || store_ == nullptr) return;
  base::log(base::LogLevel::kInfo, "storage", "in use: it has %llu blocks",
            static_cast<unsigned long long>(store_->catalogue().objects()));
  archive_.emplace(*pool_, *keeper_, std::move(store_), options_);
  if (metrics_ != nullptr) metrics_->show_storage([this] { return read_figures(*archive_); });
}

void ServedStorage::end() {
  stop_.store(true, std::memory_order_relaxed);
  if (!archive_) {  // nothing waits to be written
    const std::lock_guard lock(mutex_);
    if (cancel_) cancel_->raise();
  }
  // What a server still answers is kept; one that hangs is not waited for.
  const std::jthread canceller([this](const std::stop_token& ended) {
    std::unique_lock lock(mutex_);
    std::condition_variable_any never;
    if (never.wait_for(lock, ended, kGrace, [] { return false; }) || ended.stop_requested()) return;
    if (cancel_) cancel_->raise();
  });
  if (thread_.joinable()) thread_.join();
  if (metrics_ != nullptr) metrics_->show_storage({});
  archive_.reset();
}

}  // namespace cachalot::apps

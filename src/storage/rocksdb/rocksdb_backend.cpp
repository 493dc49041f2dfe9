#include "storage/rocksdb/rocksdb_backend.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/rare_line.h"
#include "os/file_descriptor.h"
#include "storage/file/directory.h"
#include "storage/value.h"

namespace cachalot::storage {
namespace {

namespace rdb = ::rocksdb;

constexpr std::uint64_t kPauseNs = 1'000'000'000;    // between two repairs
constexpr std::uint64_t kMemtablesOfSpace = 3;       // that must fit before a repair
constexpr std::uint64_t kMostBatchBytes = 64 << 20;  // of one write
constexpr std::uint64_t kSmallestBlob = 4096;
constexpr auto kStallPause = std::chrono::milliseconds(2);

rdb::Slice slice_of(const ObjectKey& key) {
  return {reinterpret_cast<const char*>(&key), sizeof key};
}
rdb::Slice slice_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Code code_of_status(const rdb::Status& status) {
  if (status.subcode() == rdb::Status::kNoSpace || status.subcode() == rdb::Status::kSpaceLimit)
    return Code::kNoSpace;
  if (status.IsNotFound()) return Code::kNotFound;
  if (status.IsCorruption()) return Code::kCorrupt;
  if (status.IsTimedOut() || status.IsIncomplete()) return Code::kTimeout;
  if (status.ToString().find("Permission denied") != std::string::npos) return Code::kPermission;
  return Code::kIo;
}
Error error_of(const rdb::Status& status, const std::string& directory) {
  return Error::make(code_of_status(status), "storage directory %.80s: RocksDB: %.130s",
                     directory.c_str(), status.ToString().c_str());
}

// A row of "heads".
struct HeadRow {
  std::uint64_t sequence;
  ObjectHead head;
};
static_assert(sizeof(HeadRow) == 8 + kHeadBytes);

class RocksdbBackend final : public Backend {
 public:
  RocksdbBackend(RocksdbOptions options, Directory directory)
      : options_(std::move(options)), directory_(std::move(directory)) {}
  ~RocksdbBackend() override { close(); }
  Status open();

  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override;
  Status put(std::span<Put> puts, std::uint64_t deadline_ns) override;
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override;
  Status list(const Lister& each, std::uint64_t deadline_ns) override;
  Status check() override { return directory_.check(); }

 private:
  using InUse = std::shared_lock<std::shared_timed_mutex>;

  rdb::ColumnFamilyHandle* head_family() const { return families_[1]; }
  rdb::ColumnFamilyHandle* value_family() const { return families_[2]; }
  Error failure(const rdb::Status& status) const { return error_of(status, options_.directory); }
  Status begin(InUse& in_use, std::uint64_t deadline_ns);
  void close();
  bool has_space() const;
  Status repair(std::uint64_t deadline_ns);
  Status write(rdb::WriteBatch& batch, std::uint64_t deadline_ns);

  const BackendTraits traits_{.name = "rocksdb", .align_bytes = 1, .is_shared = false};
  const RocksdbOptions options_;
  Directory directory_;            // before the database: it is closed first
  std::shared_timed_mutex mutex_;  // shared: by calls; alone: to open the database again
  std::unique_ptr<rdb::DB> db_;    // null: it did not open again
  std::vector<rdb::ColumnFamilyHandle*> families_;  // default, heads, values
  std::atomic<bool> has_failed_write_{false};
  std::atomic<std::uint64_t> next_repair_ns_{0};
};

std::chrono::nanoseconds time_left(std::uint64_t deadline_ns) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  return std::chrono::nanoseconds(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
}

// RocksDB counts deadlines in its own clock.
std::chrono::microseconds time_until(std::uint64_t deadline_ns) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(time_left(deadline_ns));
  return std::chrono::microseconds(rdb::Env::Default()->NowMicros()) +
         std::max(left, std::chrono::microseconds(1));
}

// --- Opening ---------------------------------------------------------------------------------------

bool has_direct_io(const std::string& directory) {
  const std::string mark = directory + "/cachalot-storage";
  return static_cast<bool>(
      os::FileDescriptor(::open(mark.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)));
}

// What RocksDB reports, instead of its file LOG: writing that file to a full disk ends the process in builds of the
// library that have assertions, such as Debian's.
class ErrorLog final : public rdb::Logger {
 public:
  ErrorLog() : rdb::Logger(rdb::ERROR_LEVEL) {}
  using rdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char text[400];
    (void)std::vsnprintf(text, sizeof text, format, arguments);
    text[std::strcspn(text, "\n")] = '\0';
    if (line_.is_due()) base::log(base::LogLevel::kWarn, "storage", "RocksDB: %s", text);
  }

 private:
  base::RareLine line_{10};
};

rdb::Options database_options(const RocksdbOptions& options, bool is_direct) {
  rdb::Options made;
  made.create_if_missing = true;
  made.create_missing_column_families = true;
  made.use_direct_reads = is_direct;
  made.use_direct_io_for_flush_and_compaction = is_direct;
  // Both families at once, or the few bytes of "heads" would keep the log forever.
  made.atomic_flush = true;
  made.compression = rdb::kNoCompression;
  made.write_buffer_size = options.memtable_bytes;
  made.info_log = std::make_shared<ErrorLog>();
  made.stats_dump_period_sec = 0;
  rdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rdb::NewBloomFilterPolicy(10));
  made.table_factory.reset(rdb::NewBlockBasedTableFactory(table));
  return made;
}

rdb::ColumnFamilyOptions values_options(const rdb::Options& database) {
  rdb::ColumnFamilyOptions made(database);
  made.enable_blob_files = true;
  made.min_blob_size = kSmallestBlob;
  made.blob_file_size = database.write_buffer_size;
  made.enable_blob_garbage_collection = true;
  made.blob_garbage_collection_age_cutoff = 1.0;
  made.blob_garbage_collection_force_threshold = 0.5;
  // Removed objects are compacted soon, because each stands for a large value.
  made.table_properties_collector_factories.push_back(
      rdb::NewCompactOnDeletionCollectorFactory(256, 64));
  return made;
}

Status RocksdbBackend::open() {
  const rdb::Options database = database_options(options_, has_direct_io(options_.directory));
  const std::vector<rdb::ColumnFamilyDescriptor> families = {
      {rdb::kDefaultColumnFamilyName, rdb::ColumnFamilyOptions(database)},
      {"heads", rdb::ColumnFamilyOptions(database)},
      {"values", values_options(database)}};
  // RocksDB would make it, but reports an error first.
  (void)::mkdirat(directory_.fd(), "db", 0700);
  struct stat folder {};
  if (::fstatat(directory_.fd(), "db", &folder, 0) == 0)
    CACHALOT_TRY(directory_.check_owner(folder, "db"));
  rdb::DB* opened = nullptr;
  const rdb::Status status =
      rdb::DB::Open(database, options_.directory + "/db", families, &families_, &opened);
  if (!status.ok()) return failure(status);
  db_.reset(opened);
  return {};
}

void RocksdbBackend::close() {
  if (!db_) return;
  for (rdb::ColumnFamilyHandle* const family : families_) db_->DestroyColumnFamilyHandle(family);
  families_.clear();
  (void)db_->Close();
  db_.reset();
}

Status RocksdbBackend::begin(InUse& in_use, std::uint64_t deadline_ns) {
  for (int round = 0; round < 2; ++round) {
    in_use = InUse(mutex_, time_left(deadline_ns));
    if (!in_use.owns_lock()) {
      return Error::make(Code::kTimeout, "storage directory %.120s: RocksDB is being opened again",
                         options_.directory.c_str());
    }
    if (db_) return {};
    in_use.unlock();
    CACHALOT_TRY(repair(deadline_ns));
  }
  return Error::make(Code::kIo, "storage directory %.120s: RocksDB did not open again",
                     options_.directory.c_str());
}

// --- Writing ---------------------------------------------------------------------------------------

bool RocksdbBackend::has_space() const {
  struct statvfs info {};
  return ::statvfs(options_.directory.c_str(), &info) == 0 &&
         info.f_bavail * info.f_frsize >= kMemtablesOfSpace * options_.memtable_bytes;
}

// After a write has failed, as on a full disk, the database is opened again: RocksDB's own recovery may go on with
// the log file that failed, which it then refuses for good (and ends the process in builds with assertions).
Status RocksdbBackend::repair(std::uint64_t deadline_ns) {
  if (!has_failed_write_) return {};
  const auto wait = [this] {
    return Error::make(Code::kIo, "storage directory %.120s: a write has failed, waits for space",
                       options_.directory.c_str());
  };
  const std::uint64_t now_ns = base::SteadyClock::read();
  std::uint64_t due_ns = next_repair_ns_.load();
  if (now_ns < due_ns || !next_repair_ns_.compare_exchange_strong(due_ns, now_ns + kPauseNs) ||
      !has_space()) {
    return wait();
  }
  const std::unique_lock alone(mutex_, time_left(deadline_ns));
  if (!alone.owns_lock() || !has_failed_write_) return wait();
  close();
  CACHALOT_TRY(open());
  has_failed_write_ = false;
  return {};
}

Status RocksdbBackend::write(rdb::WriteBatch& batch, std::uint64_t deadline_ns) {
  rdb::WriteOptions options;
  options.sync = options_.sync;
  options.no_slowdown = true;  // it would wait for compactions without regard to the deadline
  while (true) {
    const rdb::Status status = db_->Write(options, &batch);
    if (status.ok()) return {};
    if (!status.IsIncomplete()) {
      has_failed_write_ = true;
      return failure(status);
    }
    if (base::SteadyClock::read() >= deadline_ns) {
      return Error::make(Code::kTimeout, "storage directory %.120s: RocksDB: its compactions lag",
                         options_.directory.c_str());
    }
    std::this_thread::sleep_for(kStallPause);
  }
}

Status RocksdbBackend::put(std::span<Put> puts, std::uint64_t deadline_ns) {
  CACHALOT_TRY(repair(deadline_ns));
  InUse in_use;
  CACHALOT_TRY(begin(in_use, deadline_ns));
  std::size_t first = 0;
  while (first < puts.size()) {
    rdb::WriteBatch batch;
    std::size_t last = first;
    for (; last < puts.size() && batch.GetDataSize() < kMostBatchBytes; ++last) {
      const Put& put = puts[last];
      const HeadRow row{db_->GetLatestSequenceNumber() + last, put.head};
      std::vector<rdb::Slice> value{{reinterpret_cast<const char*>(&put.head), kHeadBytes}};
      for (const Bytes& piece : put.body) value.push_back(slice_of(piece));
      const rdb::Slice key = slice_of(put.head.key);
      rdb::Status added = batch.Put(value_family(), rdb::SliceParts(&key, 1),
                                    rdb::SliceParts(value.data(), static_cast<int>(value.size())));
      if (added.ok())
        added = batch.Put(head_family(), key, {reinterpret_cast<const char*>(&row), sizeof row});
      if (!added.ok()) return failure(added);
    }
    const Status written = write(batch, deadline_ns);
    for (Put& put : puts.subspan(first, last - first)) put.status = written;
    first = last;
  }
  return {};
}

Status RocksdbBackend::remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) {
  CACHALOT_TRY(repair(deadline_ns));
  InUse in_use;
  CACHALOT_TRY(begin(in_use, deadline_ns));
  rdb::WriteBatch batch;
  for (const ObjectKey& key : keys) {
    (void)batch.Delete(head_family(), slice_of(key));
    (void)batch.Delete(value_family(), slice_of(key));
  }
  return write(batch, deadline_ns);
}

// --- Reading ---------------------------------------------------------------------------------------

Status RocksdbBackend::get(std::span<Get> gets, std::uint64_t deadline_ns) {
  InUse in_use;
  CACHALOT_TRY(begin(in_use, deadline_ns));
  rdb::ReadOptions options;
  options.deadline = time_until(deadline_ns);
  options.fill_cache = false;
  std::vector<rdb::Slice> keys;
  for (const Get& get : gets) keys.push_back(slice_of(get.key));
  std::vector<rdb::PinnableSlice> values_of(gets.size());
  std::vector<rdb::Status> statuses(gets.size());
  db_->MultiGet(options, value_family(), gets.size(), keys.data(), values_of.data(),
                statuses.data());
  for (std::size_t i = 0; i < gets.size(); ++i) {
    if (statuses[i].ok()) {
      take_value(std::as_bytes(std::span(values_of[i].data(), values_of[i].size())), gets[i]);
    } else if (statuses[i].IsNotFound()) {
      gets[i].status = Error::make(Code::kNotFound, "storage: has no such object");
    } else {
      gets[i].status = failure(statuses[i]);
    }
    values_of[i].Reset();
  }
  return {};
}

Status RocksdbBackend::exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                              std::uint64_t deadline_ns) {
  InUse in_use;
  CACHALOT_TRY(begin(in_use, deadline_ns));
  rdb::ReadOptions options;
  options.deadline = time_until(deadline_ns);
  std::vector<rdb::Slice> names;
  for (const ObjectKey& key : keys) names.push_back(slice_of(key));
  std::vector<rdb::PinnableSlice> rows(keys.size());
  std::vector<rdb::Status> statuses(keys.size());
  db_->MultiGet(options, head_family(), keys.size(), names.data(), rows.data(), statuses.data());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    is_there[i] = statuses[i].ok();
    if (!statuses[i].ok() && !statuses[i].IsNotFound()) return failure(statuses[i]);
  }
  return {};
}

Status RocksdbBackend::list(const Lister& each, std::uint64_t deadline_ns) {
  InUse in_use;
  CACHALOT_TRY(begin(in_use, deadline_ns));
  rdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rdb::Iterator> row(db_->NewIterator(options, head_family()));
  std::vector<HeadRow> found;
  for (row->SeekToFirst(); row->Valid(); row->Next()) {
    HeadRow one;
    if (row->value().size() != sizeof one) continue;
    std::memcpy(&one, row->value().data(), sizeof one);
    if (row->key() == slice_of(one.head.key) && check_head(one.head, one.head.key))
      found.push_back(one);
    if (found.size() % 4096 == 0 && base::SteadyClock::read() >= deadline_ns)
      return Error::make(Code::kTimeout, "storage directory %.120s: list: more than %zu objects",
                         options_.directory.c_str(), found.size());
  }
  if (!row->status().ok()) return failure(row->status());
  std::sort(found.begin(), found.end(),
            [](const HeadRow& a, const HeadRow& b) { return a.sequence < b.sequence; });
  for (const HeadRow& one : found) {
    if (!each(one.head)) break;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> open_rocksdb_backend(const RocksdbOptions& options) {
  CACHALOT_TRY_ASSIGN(Directory directory,
                      Directory::open(options.directory, options.owners, "rocksdb"));
  auto backend = std::make_unique<RocksdbBackend>(options, std::move(directory));
  CACHALOT_TRY(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace cachalot::storage

#include "storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

#include "base/rng.h"
#include "fio.h"
#include "storage/backends.h"
#include "storage/store.h"

namespace cachalot::apps::bench {
namespace {

using storage::Bytes;
using storage::Get;
using storage::ObjectKey;
using storage::Room;
using storage::Store;

constexpr BlockHash kSpace{1, 1};
constexpr std::uint32_t kDepth = 32;  // as FileOptions has it
constexpr std::size_t kGets = 512;    // a call: its end, when the queue drains, is seldom
constexpr std::size_t kFewRooms = 2 * kDepth;
constexpr std::uint32_t kPieceMs = 1500;  // of one measurement
constexpr std::uint64_t kTimeoutNs = 60'000'000'000;

// A folder that goes with its owner.
class Folder {
 public:
  static Result<Folder> make(const std::string& parent) {
    std::string path = parent + "/cachalot_bench.XXXXXX";
    if (mkdtemp(path.data()) == nullptr)
      return Error::from_errno(errno, "--directory %.160s: make a folder in it", parent.c_str());
    return Folder(std::move(path));
  }
  Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Objects of one size in a `file` storage, and memory to read them into.
class StoredObjects {
 public:
  static Result<StoredObjects> make(const std::string& folder, std::uint64_t block_bytes,
                                    std::uint64_t objects) {
    CACHALOT_TRY_ASSIGN(std::unique_ptr<storage::Backend> backend,
                        storage::open_backend("file:" + folder + "/objects", {}));
    StoredObjects stored(Store::make(std::move(backend), {}), block_bytes);
    while (stored.order_.size() < objects) CACHALOT_TRY(stored.put_chain());
    return stored;
  }

  // Reads random objects for a while: each once, then each once more.
  // @param rooms        of a call, kGets at most: with fewer, bytes overwrite others, as in fio's buffers
  // @param is_verified  through the store, which also verifies each; else from the backend
  Result<ReadRate> read(std::size_t rooms, bool is_verified) {
    const std::uint64_t start_ns = now_ns(), cpu_ns = own_cpu_ns();
    std::uint64_t bytes = 0;
    std::uint64_t end_ns = start_ns;
    for (; end_ns - start_ns < kPieceMs * 1'000'000ull; end_ns = now_ns()) {
      CACHALOT_TRY(read_some(rooms, is_verified));
      bytes += kGets * block_bytes_;
    }
    const double gib = static_cast<double>(bytes) / (1u << 30);
    return ReadRate{static_cast<double>(bytes) / static_cast<double>(end_ns - start_ns),
                    static_cast<double>(own_cpu_ns() - cpu_ns) / 1e9 / gib};
  }

 private:
  StoredObjects(std::unique_ptr<Store> store, std::uint64_t block_bytes)
      : store_(std::move(store)),
        block_bytes_(block_bytes),
        memory_(static_cast<std::byte*>(std::aligned_alloc(1u << 21, kGets * block_bytes)),
                &std::free) {
    // As the memory of a pool. With pages of 4 KiB a read is a third slower.
    (void)madvise(memory_.get(), kGets * block_bytes, MADV_HUGEPAGE);
    for (std::size_t i = 0; i < kGets * block_bytes / 8; ++i) {
      const std::uint64_t word = rng_.next();
      std::memcpy(memory_.get() + i * 8, &word, 8);
    }
  }

  std::byte* room(std::size_t i) { return memory_.get() + i * block_bytes_; }

  Status put_chain() {
    std::vector<Bytes> payloads;
    std::vector<storage::BlockPut> blocks;
    for (std::size_t i = 0; i < kGets; ++i) {
      const std::uint64_t number = order_.size() + i + 1;
      std::memcpy(room(i), &number, sizeof number);
      payloads.emplace_back(room(i), block_bytes_);
    }
    for (std::size_t i = 0; i < kGets; ++i) {
      const BlockHash hash{order_.size() + 1, 1};
      blocks.push_back({hash, {&payloads[i], 1}});
      order_.push_back(hash);
    }
    if (store_->put(kSpace, nullptr, blocks, now_ns() + kTimeoutNs) == kGets) return {};
    return Error::make(Code::kIo, "bench storage: blocks were not stored: is the disk full?");
  }

  Status read_some(std::size_t room_count, bool is_verified) {
    std::vector<Room> rooms;
    std::vector<Get> gets;
    for (std::size_t i = 0; i < kGets; ++i) rooms.emplace_back(room(i % room_count), block_bytes_);
    for (std::size_t i = 0; i < kGets; ++i) gets.push_back({{kSpace, next()}, {&rooms[i], 1}});
    if (is_verified) {
      store_->get(gets, now_ns() + kTimeoutNs);
    } else {
      CACHALOT_TRY(store_->backend().get(gets, now_ns() + kTimeoutNs));
    }
    for (const Get& get : gets) CACHALOT_TRY(get.status);
    return {};
  }

  const BlockHash& next() {
    if (next_ == order_.size()) next_ = 0;
    if (next_ == 0) {
      for (std::size_t i = order_.size(); i > 1; --i)
        std::swap(order_[i - 1], order_[rng_.below(i)]);
    }
    return order_[next_++];
  }

  std::unique_ptr<Store> store_;
  std::uint64_t block_bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  base::Rng rng_{1};
  std::vector<BlockHash> order_;
  std::size_t next_ = 0;
};

// A way to read, measured many times.
struct Way {
  const char* name;
  std::size_t rooms = 0;
  bool is_verified = false;
  bool has_bar = false;
  std::vector<double> gb_s = {}, cpu_s = {},
                      ratios = {};  // ratios: to fio's piece of the same turn

  void add(const ReadRate& rate, double fio_gb_s) {
    gb_s.push_back(rate.gb_s);
    cpu_s.push_back(rate.cpu_s_per_gib);
    if (fio_gb_s != 0) ratios.push_back(rate.gb_s / fio_gb_s);
  }
};

// Disks of virtual machines change their speed within seconds, so the figure is the median of the turns' ratios.
void add_row(const Way& way, const Way& fio, const std::string& where, Report& report) {
  const std::string name = way.name + where;
  const Spread gb_s = spread_of(way.gb_s);
  if (fio.gb_s.empty()) {
    report.add({name, gb_s.median, "GB/s", "", 0});
    return;
  }
  const Spread spread = spread_of(way.ratios);
  Row row{name, spread.median, "of fio", "", 0};
  if (way.has_bar) row.target = value_at_least(0.9);
  add_spread(row, spread);
  row.extras.insert(row.extras.end(), {{"gb_s", gb_s.median},
                                       {"fio_gb_s", median_of(fio.gb_s)},
                                       {"cpu_s_per_gib", median_of(way.cpu_s)},
                                       {"fio_cpu_s_per_gib", median_of(fio.cpu_s)}});
  report.add(std::move(row));
  char text[160];
  std::snprintf(text, sizeof text, "%s: %.2f GB/s, fio %.2f; CPU %.2f s a GiB, fio %.2f",
                name.c_str(), gb_s.median, median_of(fio.gb_s), median_of(way.cpu_s),
                median_of(fio.cpu_s));
  report.note(text);
}

Status run_reads(const Settings& settings, Report& report, std::uint64_t block_bytes) {
  const std::uint64_t file_bytes = (settings.quick ? 1ull : 2ull) << 30;
  CACHALOT_TRY_ASSIGN(const Folder folder, Folder::make(settings.directory));
  CACHALOT_TRY_ASSIGN(StoredObjects stored,
                      StoredObjects::make(folder.path(), block_bytes, file_bytes / block_bytes));
  const FioReads reads{folder.path(), block_bytes, file_bytes, kDepth};
  const Status has_fio = write_fio_file(reads);
  if (!has_fio && has_fio.error().code != Code::kUnsupported) return has_fio;
  if (!has_fio) report.note("without a limit: the program fio is not installed");
  Way fio{"fio"};
  Way ways[] = {{.name = "read/backend", .rooms = kFewRooms, .has_bar = true},
                {.name = "read/rooms", .rooms = kGets},
                {.name = "read/store", .rooms = kGets, .is_verified = true}};
  constexpr std::uint32_t kWays = 1 + std::size(ways);
  for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
    // Each is the first as often as the others.
    ReadRate rates[kWays];
    for (std::uint32_t i = 0; i < kWays; ++i) {
      const std::uint32_t at = (turn + i) % kWays;
      if (at == 0 && !has_fio) continue;
      CACHALOT_TRY_ASSIGN(rates[at],
                          at == 0 ? run_fio(reads, kPieceMs)
                                  : stored.read(ways[at - 1].rooms, ways[at - 1].is_verified));
    }
    if (has_fio) fio.add(rates[0], 0);
    for (std::uint32_t at = 1; at < kWays; ++at) ways[at - 1].add(rates[at], rates[0].gb_s);
  }
  const std::string where = "/" + std::to_string(block_bytes >> 10) + "KiB";
  for (const Way& way : ways) add_row(way, fio, where, report);
  return {};
}

}  // namespace

Status bench_storage(const Settings& settings, Report& report) {
  for (const std::uint64_t block_bytes : {std::uint64_t{64} << 10, std::uint64_t{1} << 20}) {
    show_progress("storage: " + std::to_string(block_bytes >> 10) + " KiB");
    CACHALOT_TRY(run_reads(settings, report, block_bytes));
    if (settings.quick) break;
  }
  report.note(
      "512 random objects a call, 32 reads in flight, direct; fio: io_uring, the same depth");
  return {};
}

}  // namespace cachalot::apps::bench

#include "replay/pool/replay.h"

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "pool/pool.h"
#include "replay/pool/crew.h"
#include "replay/pool/source_marks.h"

namespace cachalot::replay {
namespace {

using base::SteadyClock;

constexpr std::uint64_t kLookMs = 10;
constexpr std::uint64_t kProgressNs = 100'000'000;
constexpr double kNsPerSecond = 1e9;

// The pools of all hosts. Their files are removed on every way out, after the processes have ended; not where another
// process took a pool over and serves it.
class Pools {
 public:
  Pools() = default;
  ~Pools() {
    for (pool::Pool& pool : all_) (void)pool.remove();
  }
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  void add(pool::Pool pool) { all_.push_back(std::move(pool)); }
  std::span<const pool::Pool> all() const { return all_; }
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const pool::Pool& pool : all_)
      bytes += pool.devices().count() * pool.devices().bytes_each();
    return bytes;
  }

 private:
  std::vector<pool::Pool> all_;
};

// Where the keepers of a replay find each other.
class RegistryFolder {
 public:
  // @errors kPermission, kNoSpace, kIo: no folder can be made
  Status make() {
    std::error_code unknown;
    std::string path = std::filesystem::temp_directory_path(unknown) / "cachalot-replay.XXXXXX";
    if (mkdtemp(path.data()) == nullptr)
      return Error::from_errno(errno, "peers: folder %.200s", path.c_str());
    path_ = path;
    return {};
  }
  ~RegistryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  RegistryFolder() = default;
  RegistryFolder(const RegistryFolder&) = delete;
  RegistryFolder& operator=(const RegistryFolder&) = delete;

  std::string uri() const { return path_.empty() ? "" : "file:" + path_; }

 private:
  std::string path_;
};

Result<pool::Pool> create_pool(const ReplayOptions& options) {
  pool::CreateOptions create;
  create.paths = options.pool_paths;
  if (create.paths.empty()) create.paths.push_back("memfd:cachalot-replay");
  CACHALOT_TRY_ASSIGN(create.geometry, pool_geometry(options));
  // Each process fills in its own page table.
  create.populate = false;
  return pool::Pool::create(create);
}

// One for each host, where a fetched block may have come from storage or from peers; else none.
Result<std::vector<SourceMarks>> make_marks(const ReplayOptions& options,
                                            const Workload& workload) {
  std::vector<SourceMarks> marks;
  if (!options.hosts.has_peers || options.storage.uris.empty()) return marks;
  for (std::uint32_t host = 0; host < options.host_count(); ++host) {
    CACHALOT_TRY_ASSIGN(SourceMarks mark, SourceMarks::make(workload.blocks()));
    marks.push_back(std::move(mark));
  }
  return marks;
}

// Tells the sink how far the replay is.
class ProgressMeter {
 public:
  ProgressMeter(const ReplayOptions& options, const Workload& workload, const Pools& pools,
                const HarnessState& harness, ProgressSink& sink)
      : engines_(harness.engines, options.all_engines()),
        requests_(workload.requests() * options.passes),
        pools_(&pools),
        sink_(&sink),
        start_ns_(SteadyClock::read()),
        last_ns_(start_ns_) {}

  void tell_now_and_then() {
    const std::uint64_t now_ns = SteadyClock::read();
    if (now_ns - last_ns_ >= kProgressNs) tell(now_ns);
  }

  std::uint64_t requests() const { return requests_; }
  std::uint64_t requests_done() const { return sum(ReplayCounter::kRequests); }

 private:
  void tell(std::uint64_t now_ns) {
    Progress progress;
    progress.requests_done = requests_done();
    progress.requests = requests_;
    const std::uint64_t blocks = sum(ReplayCounter::kBlocks);
    if (blocks != 0) {
      progress.block_hit_rate =
          static_cast<double>(sum(ReplayCounter::kHitBlocks)) / static_cast<double>(blocks);
    }
    const std::uint64_t bytes = sum(ReplayCounter::kBytesRead) + sum(ReplayCounter::kBytesWritten);
    progress.gb_s =
        static_cast<double>(bytes - last_bytes_) / static_cast<double>(now_ns - last_ns_);
    for (const pool::Pool& pool : pools_->all()) {
      pool::KeeperCounters keeper;
      if (pool.state().read_keeper_counters(keeper))
        progress.evictions += keeper[pool::KeeperCounter::kEvictions];
    }
    progress.errors = sum(ReplayCounter::kVerifyErrors) + sum(ReplayCounter::kDamagedReads);
    progress.elapsed_s = static_cast<double>(now_ns - start_ns_) / kNsPerSecond;
    last_ns_ = now_ns;
    last_bytes_ = bytes;
    sink_->on_progress(progress);
  }

  std::uint64_t sum(ReplayCounter counter) const {
    std::uint64_t total = 0;
    for (const EngineState& engine : engines_) total += engine.sum(counter);
    return total;
  }

  std::span<const EngineState> engines_;
  std::uint64_t requests_;
  const Pools* pools_;
  ProgressSink* sink_;
  std::uint64_t start_ns_, last_ns_;
  std::uint64_t last_bytes_ = 0;
};

Error stopped(std::uint64_t done, std::uint64_t requests) {
  return Error::make(Code::kTimeout,
                     "replay: was told to end after %" PRIu64 " of %" PRIu64 " requests", done,
                     requests);
}

Status run(Crew& crew, ProgressMeter& meter, ProgressSink& sink) {
  crew.go();
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool all_done, crew.wait_for(kLookMs));
    if (all_done) return crew.end_keepers();
    if (sink.should_stop()) return stopped(meter.requests_done(), meter.requests());
    meter.tell_now_and_then();
  }
}

}  // namespace

Result<ReplayReport> replay(const ReplayOptions& options, ProgressSink& sink) {
  const std::uint64_t begin_ns = SteadyClock::read();
  CACHALOT_TRY(check_options(options));
  CACHALOT_TRY_ASSIGN(const Workload workload, Workload::load(options));
  Pools pools;
  for (std::uint32_t host = 0; host < options.host_count(); ++host) {
    CACHALOT_TRY_ASSIGN(pool::Pool pool, create_pool(options));
    pools.add(std::move(pool));
  }
  if (sink.should_stop()) return stopped(0, workload.requests() * options.passes);

  CACHALOT_TRY_ASSIGN(const Harness harness, Harness::make());
  HarnessState& state = harness.state();
  RegistryFolder registry;
  if (options.hosts.has_peers) CACHALOT_TRY(registry.make());
  CACHALOT_TRY_ASSIGN(std::vector<SourceMarks> marks, make_marks(options, workload));
  std::vector<HostPlace> places;
  for (const pool::Pool& pool : pools.all()) {
    SourceMarks* const mark = marks.empty() ? nullptr : &marks[places.size()];
    places.push_back({pool.paths(), registry.uri(), mark});
  }
  CACHALOT_TRY_ASSIGN(Crew crew, Crew::start(options, workload, places, state));
  ProgressMeter meter(options, workload, pools, state, sink);
  CACHALOT_TRY(run(crew, meter, sink));

  ReplayReport report = make_report(options, workload, state);
  report.setup_s = static_cast<double>(state.start_ns.load() - begin_ns) / kNsPerSecond;
  for (const pool::Pool& pool : pools.all()) {
    const pool::ClientCounters totals = pool.state().read_totals();
    report.prompt_blocks += totals[pool::ClientCounter::kPromptBlocks];
    report.used_storage_blocks += totals[pool::ClientCounter::kUsedStorageBlocks];
    report.used_peer_blocks += totals[pool::ClientCounter::kUsedPeerBlocks];
    report.used_blocks += totals[pool::ClientCounter::kUsedPoolBlocks];
  }
  report.used_blocks += report.used_storage_blocks + report.used_peer_blocks;
  report.pool_bytes = pools.bytes();
  return report;
}

}  // namespace cachalot::replay

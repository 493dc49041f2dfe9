#include "replay/pool/report.h"

#include <algorithm>
#include <memory>

namespace cachalot::replay {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kNsPerUs = 1e3;

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}
double as_double(std::uint64_t value) {
  return static_cast<double>(value);
}

std::string fault_text(std::uint32_t engine, const Fault& fault) {
  return "engine " + std::to_string(engine) + ": request " + std::to_string(fault.request) +
         ", block " + std::to_string(fault.block) + ", byte " + std::to_string(fault.byte) +
         " is wrong (written by engine " + std::to_string(fault.writer) + ")";
}

Percentiles percentiles(const base::Histogram& histogram) {
  return {histogram.percentile(0.5) / kNsPerUs, histogram.percentile(0.99) / kNsPerUs};
}

// The counters of all engines.
class Totals {
 public:
  explicit Totals(std::span<const EngineState> engines) : engines_(engines) {}

  std::uint64_t operator[](ReplayCounter counter) const {
    std::uint64_t sum = 0;
    for (const EngineState& engine : engines_) sum += engine.counters[counter];
    return sum;
  }
  double seconds(ReplayCounter counter) const { return as_double((*this)[counter]) / kNsPerSecond; }

 private:
  std::span<const EngineState> engines_;
};

void fill_counts(const Totals& totals, ReplayReport& report) {
  report.requests = totals[ReplayCounter::kRequests];
  report.tokens_in = totals[ReplayCounter::kInputTokens];
  report.blocks_total = totals[ReplayCounter::kBlocks];
  report.blocks_hit = totals[ReplayCounter::kHitBlocks];
  report.blocks_hit_remote = totals[ReplayCounter::kRemoteHitBlocks];
  report.blocks_hit_storage = totals[ReplayCounter::kStorageHitBlocks];
  report.blocks_written = totals[ReplayCounter::kWrittenBlocks];
  report.blocks_duplicate = totals[ReplayCounter::kDuplicateBlocks];
  report.blocks_unstored = totals[ReplayCounter::kUnstoredBlocks];
  report.bytes_read = totals[ReplayCounter::kBytesRead];
  report.bytes_written = totals[ReplayCounter::kBytesWritten];
  report.verify_checked = totals[ReplayCounter::kCheckedBlocks];
  report.verify_checked_bytes = totals[ReplayCounter::kCheckedBytes];
  report.verify_errors = totals[ReplayCounter::kVerifyErrors];
  report.stale_reads_discarded = totals[ReplayCounter::kStaleReads];
  report.damaged_reads = totals[ReplayCounter::kDamagedReads];
  report.spent = {
      totals.seconds(ReplayCounter::kLookupNs), totals.seconds(ReplayCounter::kReadNs),
      totals.seconds(ReplayCounter::kVerifyNs), totals.seconds(ReplayCounter::kComputeNs),
      totals.seconds(ReplayCounter::kWriteNs),  totals.seconds(ReplayCounter::kFetchNs),
      totals.seconds(ReplayCounter::kArchiveNs)};
}

void fill_rates(const Totals& totals, ReplayReport& report) {
  report.block_hit_rate = ratio(as_double(report.blocks_hit), as_double(report.blocks_total));
  report.token_hit_rate =
      ratio(as_double(totals[ReplayCounter::kHitTokens]), as_double(report.tokens_in));
  report.read_gb_s = ratio(as_double(report.bytes_read), report.spent.read_s) / kNsPerSecond;
  report.write_gb_s = ratio(as_double(report.bytes_written), report.spent.write_s) / kNsPerSecond;
  report.total_gb_s =
      ratio(as_double(report.bytes_read + report.bytes_written), report.wall_s) / kNsPerSecond;
}

}  // namespace

ReplayReport make_report(const ReplayOptions& options, const Workload& workload,
                         const HarnessState& harness) {
  const std::span<const EngineState> engines(harness.engines, options.engines);
  const Totals totals(engines);
  ReplayReport report;
  fill_counts(totals, report);
  // On the heap: two of them are larger than a frame should be.
  const auto lookups = std::make_unique<base::Histogram>();
  const auto requests = std::make_unique<base::Histogram>();
  std::uint64_t end_ns = 0;
  for (std::uint32_t i = 0; i < options.engines; ++i) {
    const EngineState& engine = engines[i];
    lookups->add(engine.lookup_ns);
    requests->add(engine.request_ns);
    end_ns = std::max(end_ns, engine.end_ns);
    report.engines.push_back({engine.counters[ReplayCounter::kRequests],
                              engine.counters[ReplayCounter::kHitBlocks],
                              engine.counters[ReplayCounter::kRemoteHitBlocks],
                              engine.counters[ReplayCounter::kWrittenBlocks]});
    if (engine.fault.is_set) report.faults.push_back(fault_text(i, engine.fault));
  }
  report.lookup = percentiles(*lookups);
  report.request = percentiles(*requests);
  report.wall_s = as_double(end_ns - std::min(end_ns, harness.start_ns.load())) / kNsPerSecond;
  report.storage = harness.storage;
  report.evictions = harness.keeper_counters[pool::KeeperCounter::kEvictions];
  report.bytes_saved = report.blocks_hit * options.block_bytes;
  report.skipped_lines = workload.skipped_lines();
  fill_rates(totals, report);
  return report;
}

}  // namespace cachalot::replay

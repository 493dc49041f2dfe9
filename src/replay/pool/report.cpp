#include "replay/pool/report.h"

#include <algorithm>
#include <memory>

namespace cachalot::replay {
namespace {

constexpr double kNsPerS = 1e9;
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
  // @param passes  of these, beginning with the first
  Totals(std::span<const EngineState> engines, std::uint32_t first_pass, std::uint32_t passes)
      : engines_(engines), first_pass_(first_pass), passes_(passes) {}

  std::uint64_t operator[](ReplayCounter counter) const {
    std::uint64_t sum = 0;
    for (const EngineState& engine : engines_) {
      for (const EnginePass& pass : passes_of(engine)) sum += pass.counters[counter];
    }
    return sum;
  }
  double seconds(ReplayCounter counter) const { return as_double((*this)[counter]) / kNsPerS; }

  // Percentiles of a histogram of each pass.
  Percentiles percentiles_of(base::Histogram EnginePass::*histogram) const {
    const auto all =
        std::make_unique<base::Histogram>();  // on the heap: larger than a frame should be
    for (const EngineState& engine : engines_) {
      for (const EnginePass& pass : passes_of(engine)) all->add(pass.*histogram);
    }
    return percentiles(*all);
  }
  // Of the last request; 0: there was none.
  std::uint64_t end_ns() const {
    std::uint64_t last = 0;
    for (const EngineState& engine : engines_) {
      for (const EnginePass& pass : passes_of(engine)) last = std::max(last, pass.end_ns);
    }
    return last;
  }

 private:
  std::span<const EnginePass> passes_of(const EngineState& engine) const {
    return std::span(engine.passes).subspan(first_pass_, passes_);
  }

  std::span<const EngineState> engines_;
  std::uint32_t first_pass_, passes_;
};

double seconds_between(std::uint64_t start_ns, std::uint64_t end_ns) {
  return as_double(end_ns - std::min(end_ns, start_ns)) / kNsPerS;
}

ReplayReport::Pass pass_of(const Totals& totals, std::uint64_t start_ns) {
  ReplayReport::Pass pass;
  pass.requests = totals[ReplayCounter::kRequests];
  pass.blocks_total = totals[ReplayCounter::kBlocks];
  pass.blocks_hit = totals[ReplayCounter::kHitBlocks];
  pass.blocks_hit_storage = totals[ReplayCounter::kStorageHitBlocks];
  pass.blocks_hit_peers = totals[ReplayCounter::kPeerHitBlocks];
  pass.blocks_written = totals[ReplayCounter::kWrittenBlocks];
  pass.block_hit_rate = ratio(as_double(pass.blocks_hit), as_double(pass.blocks_total));
  pass.token_hit_rate = ratio(as_double(totals[ReplayCounter::kHitTokens]),
                              as_double(totals[ReplayCounter::kInputTokens]));
  pass.bytes_read = totals[ReplayCounter::kBytesRead];
  pass.bytes_written = totals[ReplayCounter::kBytesWritten];
  pass.read_gb_s =
      ratio(as_double(pass.bytes_read), totals.seconds(ReplayCounter::kReadNs)) / kNsPerS;
  pass.write_gb_s =
      ratio(as_double(pass.bytes_written), totals.seconds(ReplayCounter::kWriteNs)) / kNsPerS;
  pass.lookup = totals.percentiles_of(&EnginePass::lookup_ns);
  pass.request = totals.percentiles_of(&EnginePass::request_ns);
  pass.verify_checked = totals[ReplayCounter::kCheckedBlocks];
  pass.verify_errors = totals[ReplayCounter::kVerifyErrors];
  pass.wall_s = seconds_between(start_ns, totals.end_ns());
  return pass;
}

void fill_counts(const Totals& totals, ReplayReport& report) {
  report.requests = totals[ReplayCounter::kRequests];
  report.tokens_in = totals[ReplayCounter::kInputTokens];
  report.blocks_total = totals[ReplayCounter::kBlocks];
  report.blocks_hit = totals[ReplayCounter::kHitBlocks];
  report.blocks_hit_remote = totals[ReplayCounter::kRemoteHitBlocks];
  report.blocks_hit_storage = totals[ReplayCounter::kStorageHitBlocks];
  report.blocks_hit_peers = totals[ReplayCounter::kPeerHitBlocks];
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
  report.read_gb_s = ratio(as_double(report.bytes_read), report.spent.read_s) / kNsPerS;
  report.write_gb_s = ratio(as_double(report.bytes_written), report.spent.write_s) / kNsPerS;
  report.total_gb_s =
      ratio(as_double(report.bytes_read + report.bytes_written), report.wall_s) / kNsPerS;
}

void add_host(const HostState& host, ReplayReport& report) {
  const StorageCounters& storage = host.storage;
  report.storage.written_bytes += storage.written_bytes;
  report.storage.read_bytes += storage.read_bytes;
  report.storage.fetched_blocks += storage.fetched_blocks;
  report.storage.unused_blocks += storage.unused_blocks;
  report.storage.lost_blocks += storage.lost_blocks;
  report.storage.evicted_blocks += storage.evicted_blocks;
  report.storage.failed_blocks += storage.failed_blocks;
  report.storage.damaged_blocks += storage.damaged_blocks;
  report.peers.read_blocks += host.peers.read_blocks;
  report.peers.read_bytes += host.peers.read_bytes;
  report.peers.absent_blocks += host.peers.absent_blocks;
  report.peers.failed_requests += host.peers.failed_requests;
  report.evictions += host.keeper_counters[pool::KeeperCounter::kEvictions];
}

ReplayReport::PerHost host_of(const Totals& totals) {
  return {totals[ReplayCounter::kRequests],      totals[ReplayCounter::kBlocks],
          totals[ReplayCounter::kHitBlocks],     totals[ReplayCounter::kStorageHitBlocks],
          totals[ReplayCounter::kPeerHitBlocks], totals[ReplayCounter::kVerifyErrors]};
}

}  // namespace

ReplayReport make_report(const ReplayOptions& options, const Workload& workload,
                         const HarnessState& harness) {
  const std::span<const EngineState> engines(harness.engines, options.all_engines());
  const Totals totals(engines, 0, options.passes);
  ReplayReport report;
  fill_counts(totals, report);
  for (std::uint32_t i = 0; i < engines.size(); ++i) {
    const EngineState& engine = engines[i];
    report.engines.push_back(
        {engine.sum(ReplayCounter::kRequests), engine.sum(ReplayCounter::kHitBlocks),
         engine.sum(ReplayCounter::kRemoteHitBlocks), engine.sum(ReplayCounter::kWrittenBlocks)});
    if (engine.fault.is_set) report.faults.push_back(fault_text(i, engine.fault));
  }
  report.lookup = totals.percentiles_of(&EnginePass::lookup_ns);
  report.request = totals.percentiles_of(&EnginePass::request_ns);
  report.wall_s = seconds_between(harness.start_ns.load(), totals.end_ns());
  for (std::uint32_t i = 0; options.passes > 1 && i < options.passes; ++i) {
    report.passes.push_back(pass_of(Totals(engines, i, 1), harness.pass_start_ns[i].load()));
  }
  for (std::uint32_t i = 0; i < options.host_count(); ++i) add_host(harness.hosts[i], report);
  for (std::uint32_t i = 0; i < options.hosts.count; ++i)
    report.hosts.push_back(
        host_of(Totals(engines.subspan(i * options.engines, options.engines), 0, options.passes)));
  report.bytes_saved = report.blocks_hit * options.block_bytes;
  report.skipped_lines = workload.skipped_lines();
  fill_rates(totals, report);
  return report;
}

}  // namespace cachalot::replay

#include "replay_output.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/words.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using replay::ReplayOptions;
using replay::ReplayReport;
using replay::VerifyMode;

[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...) {
  char out[200];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(out, sizeof out, format, arguments);
  va_end(arguments);
  return out;
}

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

std::string latency(const replay::Percentiles& p) {
  return text("p50 %.1f us, p99 %.1f us", p.p50_us, p.p99_us);
}

std::string verification(const ReplayOptions& options, const ReplayReport& report) {
  if (options.verify == VerifyMode::kOff) return "off";
  return text("%s of %s blocks (%s): %s wrong",
              options.verify == VerifyMode::kFull ? "every byte" : "every 16th line",
              base::grouped(report.verify_checked).c_str(),
              bytes_text(report.verify_checked_bytes).c_str(),
              base::grouped(report.verify_errors).c_str());
}

void row(std::FILE* to, const char* name, const std::string& value) {
  std::fprintf(to, "  %-14s %s\n", name, value.c_str());
}

void print_times(std::FILE* to, const ReplayOptions& options, const ReplayReport& report) {
  const std::uint32_t engines = options.all_engines();
  const double all_s = report.wall_s * engines;
  const replay::TimeSpent& spent = report.spent;
  const double known_s = spent.lookup_s + spent.read_s + spent.verify_s + spent.compute_s +
                         spent.write_s + spent.fetch_s + spent.archive_s;
  row(to, "time",
      text("of %s x %.2f s: lookup %.0f %%, read %.0f %%, check bytes %.0f %%, "
           "make bytes %.0f %%, write %.0f %%, other %.0f %%",
           base::counted(engines, "engine").c_str(), report.wall_s, percent(spent.lookup_s, all_s),
           percent(spent.read_s, all_s), percent(spent.verify_s, all_s),
           percent(spent.compute_s, all_s), percent(spent.write_s, all_s),
           percent(std::max(0.0, all_s - known_s), all_s)));
}

void print_passes(std::FILE* to, const ReplayReport& report) {
  for (std::size_t i = 0; i < report.passes.size(); ++i) {
    const ReplayReport::Pass& pass = report.passes[i];
    row(to, text("pass %zu", i + 1).c_str(),
        text("%.2f %% of tokens hit, request %s, %s read, %s written, %.2f s",
             100 * pass.token_hit_rate, latency(pass.request).c_str(),
             bytes_text(pass.bytes_read).c_str(), bytes_text(pass.bytes_written).c_str(),
             pass.wall_s));
  }
}

// Of a report, or of one of its hosts.
template <class Hits>
std::uint64_t pool_hits(const Hits& hits) {
  return hits.blocks_hit - hits.blocks_hit_storage - hits.blocks_hit_peers;
}
template <class Hits>
std::string hits_by_tier(const ReplayOptions& options, const Hits& hits) {
  std::string tiers = base::grouped(pool_hits(hits)) + " in the pool";
  if (options.hosts.has_peers) tiers += ", " + base::grouped(hits.blocks_hit_peers) + " from peers";
  if (!options.storage.uris.empty())
    tiers += ", " + base::grouped(hits.blocks_hit_storage) + " in storage";
  return tiers;
}

void print_hosts(std::FILE* to, const ReplayOptions& options, const ReplayReport& report) {
  for (std::size_t i = 0; i < report.hosts.size(); ++i) {
    const ReplayReport::PerHost& host = report.hosts[i];
    row(to, text("host %zu", i).c_str(),
        text("%s, %.2f %% of %s: %s; %s wrong", base::counted(host.requests, "request").c_str(),
             percent(static_cast<double>(host.blocks_hit), static_cast<double>(host.blocks_total)),
             base::counted(host.blocks_total, "block").c_str(), hits_by_tier(options, host).c_str(),
             base::grouped(host.verify_errors).c_str()));
  }
}

void print_peers(std::FILE* to, const ReplayOptions& options, const ReplayReport& report) {
  row(to, "peers",
      text("%s read (%s), %s gone, %s failed",
           base::counted(report.peers.read_blocks, "block").c_str(),
           bytes_text(report.peers.read_bytes).c_str(),
           base::grouped(report.peers.absent_blocks).c_str(),
           base::counted(report.peers.failed_requests, "request").c_str()));
  if (!options.storage.uris.empty()) return;  // whose rows say it
  row(to, "", text("engines waited %.2f s for blocks from peers", report.spent.fetch_s));
}

void print_storage(std::FILE* to, const ReplayOptions& options, const ReplayReport& report) {
  const replay::StorageCounters& storage = report.storage;
  row(to, "storage",
      text("%s written, %s read; %s came back, %s of them in vain",
           bytes_text(storage.written_bytes).c_str(), bytes_text(storage.read_bytes).c_str(),
           base::counted(storage.fetched_blocks, "block").c_str(),
           base::grouped(storage.unused_blocks).c_str()));
  row(to, "",
      text("%s evicted there, %s lost before they were written, %s failed, %s damaged",
           base::grouped(storage.evicted_blocks).c_str(),
           base::grouped(storage.lost_blocks).c_str(), base::grouped(storage.failed_blocks).c_str(),
           base::grouped(storage.damaged_blocks).c_str()));
  row(to, "",
      text("engines waited %.2f s for blocks from storage%s, %.2f s for it to keep up",
           report.spent.fetch_s, options.hosts.has_peers ? " and peers" : "",
           report.spent.archive_s));
}

std::string of_hosts(const ReplayOptions& options) {
  if (options.hosts.count == 0) return "";
  return " of " + base::counted(options.hosts.count, "host");
}

// What the run has shown, in one plain sentence.
void print_conclusion(std::FILE* to, const ReplayOptions& options, const ReplayReport& report) {
  std::string bytes = "the bytes of the blocks were not checked (--verify off)";
  if (!report.is_sound()) {
    bytes = base::counted(report.verify_errors + report.damaged_reads, "block") +
            " had wrong or damaged bytes";
  } else if (options.verify != VerifyMode::kOff) {
    bytes = options.verify == VerifyMode::kFull
                ? "every byte that an engine read from the pool was right"
                : "every line of the sample that was checked was right";
  }
  const std::uint32_t engines = options.all_engines();
  std::fprintf(to, "Result: %s%s found %.1f %% of the requests' blocks%s",
               base::counted(engines, "engine process", "engine processes").c_str(),
               of_hosts(options).c_str(), 100 * report.block_hit_rate,
               options.hosts.count == 0 ? " in the pool" : "");
  std::fprintf(to, " instead of computing them again, and %s.\n", bytes.c_str());
}

nlohmann::json to_json(const replay::Percentiles& p) {
  return {{"p50", p.p50_us}, {"p99", p.p99_us}};
}

nlohmann::json passes_json(const ReplayReport& report) {
  nlohmann::json passes = nlohmann::json::array();
  for (const ReplayReport::Pass& pass : report.passes) {
    passes.push_back({{"requests", pass.requests},
                      {"blocks_total", pass.blocks_total},
                      {"blocks_hit", pass.blocks_hit},
                      {"blocks_hit_storage", pass.blocks_hit_storage},
                      {"blocks_written", pass.blocks_written},
                      {"block_hit_rate", pass.block_hit_rate},
                      {"token_hit_rate", pass.token_hit_rate},
                      {"bytes_read", pass.bytes_read},
                      {"bytes_written", pass.bytes_written},
                      {"read_gb_s", pass.read_gb_s},
                      {"write_gb_s", pass.write_gb_s},
                      {"lookup_us", to_json(pass.lookup)},
                      {"request_us", to_json(pass.request)},
                      {"verify_checked", pass.verify_checked},
                      {"verify_errors", pass.verify_errors},
                      {"wall_s", pass.wall_s}});
  }
  return passes;
}

nlohmann::json hits_by_tier_json(const ReplayOptions& options, const ReplayReport& report) {
  nlohmann::json tiers = {{"pool", pool_hits(report)}, {"storage", report.blocks_hit_storage}};
  if (options.hosts.has_peers) tiers["peers"] = report.blocks_hit_peers;
  return tiers;
}

nlohmann::json hosts_json(const ReplayReport& report) {
  nlohmann::json hosts = nlohmann::json::array();
  for (const ReplayReport::PerHost& host : report.hosts) {
    hosts.push_back({{"host", hosts.size()},
                     {"requests", host.requests},
                     {"blocks_total", host.blocks_total},
                     {"blocks_hit", host.blocks_hit},
                     {"hits_by_tier",
                      {{"pool", pool_hits(host)},
                       {"peers", host.blocks_hit_peers},
                       {"storage", host.blocks_hit_storage}}},
                     {"verify_errors", host.verify_errors}});
  }
  return hosts;
}

nlohmann::json peers_json(const ReplayReport& report) {
  return {
      {"peer_read_blocks", report.peers.read_blocks},
      {"peer_read_bytes", report.peers.read_bytes},
      {"peer_absent_blocks", report.peers.absent_blocks},
      {"peer_failed_requests", report.peers.failed_requests},
      {"prefetched_blocks", report.storage.fetched_blocks},
      {"storage_wait_s", {{"fetch", report.spent.fetch_s}, {"archive", report.spent.archive_s}}}};
}

nlohmann::json storage_json(const ReplayReport& report) {
  const replay::StorageCounters& storage = report.storage;
  return {
      {"storage_written_bytes", storage.written_bytes},
      {"storage_read_bytes", storage.read_bytes},
      {"prefetched_blocks", storage.fetched_blocks},
      {"prefetched_unused_blocks", storage.unused_blocks},
      {"storage_evicted_blocks", storage.evicted_blocks},
      {"storage_lost_blocks", storage.lost_blocks},
      {"storage_failed_blocks", storage.failed_blocks},
      {"storage_damaged_blocks", storage.damaged_blocks},
      {"storage_wait_s", {{"fetch", report.spent.fetch_s}, {"archive", report.spent.archive_s}}}};
}

const char* verify_name(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kFull:
      return "full";
    case VerifyMode::kSample:
      return "sample";
    case VerifyMode::kOff:
      break;
  }
  return "off";
}

}  // namespace

void print_progress(const replay::Progress& progress) {
  std::fprintf(
      stderr,
      "\r\033[K%s of %s requests, hit rate %.1f %%, %.1f GB/s, %s evictions, %s errors, %.0f s",
      base::grouped(progress.requests_done).c_str(), base::grouped(progress.requests).c_str(),
      100 * progress.block_hit_rate, progress.gb_s, base::grouped(progress.evictions).c_str(),
      base::grouped(progress.errors).c_str(), progress.elapsed_s);
  std::fflush(stderr);
}

void clear_progress_line() {
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

void print_report(std::FILE* to, const ReplayOptions& options, const ReplayReport& report) {
  const std::uint32_t engines = options.all_engines();
  std::fprintf(to, "trace: %s, seed %llu\n", base::printable(options.trace).c_str(),
               static_cast<unsigned long long>(options.seed));
  std::fprintf(to, "%s (%s, %s) by %s%s in %.2f s\n",
               base::counted(report.requests, "request").c_str(),
               base::counted(report.blocks_total, "block").c_str(),
               base::counted(report.tokens_in, "token").c_str(),
               base::counted(engines, "engine").c_str(), of_hosts(options).c_str(), report.wall_s);
  std::fprintf(to, "%s of %s of %s, %s on %s, %s, %s\n",
               options.hosts.count == 0 ? "pool" : "a pool each",
               base::counted(options.capacity_blocks, "block").c_str(),
               bytes_text(options.block_bytes).c_str(), bytes_text(report.pool_bytes).c_str(),
               base::counted(options.devices, "device").c_str(), options.domain.c_str(),
               options.policy.c_str());
  row(to, "hit rate",
      text("%.2f %% of blocks, %.2f %% of tokens", 100 * report.block_hit_rate,
           100 * report.token_hit_rate));
  row(to, "hits",
      text("%s, %s (%.1f %%) of them written by another engine",
           base::counted(report.blocks_hit, "block").c_str(),
           base::grouped(report.blocks_hit_remote).c_str(),
           percent(static_cast<double>(report.blocks_hit_remote),
                   static_cast<double>(report.blocks_hit))));
  row(to, "saved", bytes_text(report.bytes_saved) + " of KV cache not computed again");
  row(to, "stored",
      text("%s; skipped: %s, %s without space or parent",
           base::counted(report.blocks_written, "block").c_str(),
           base::counted(report.blocks_duplicate, "duplicate").c_str(),
           base::grouped(report.blocks_unstored).c_str()));
  row(to, "evictions", base::grouped(report.evictions));
  print_hosts(to, options, report);
  if (options.has_sources()) row(to, "hits by tier", hits_by_tier(options, report));
  if (options.hosts.has_peers) print_peers(to, options, report);
  if (!options.storage.uris.empty()) print_storage(to, options, report);
  row(to, "read",
      text("%s, %.2f GB/s while an engine reads", bytes_text(report.bytes_read).c_str(),
           report.read_gb_s));
  row(to, "written",
      text("%s, %.2f GB/s while an engine writes", bytes_text(report.bytes_written).c_str(),
           report.write_gb_s));
  row(to, "both", text("%.2f GB/s over all engines and the whole run", report.total_gb_s));
  row(to, "lookup", latency(report.lookup));
  row(to, "request", latency(report.request));
  print_times(to, options, report);
  print_passes(to, report);
  row(to, "discarded",
      text("%s of blocks reused meanwhile, %s of damaged ones",
           base::counted(report.stale_reads_discarded, "read").c_str(),
           base::grouped(report.damaged_reads).c_str()));
  row(to, "verified", verification(options, report));
  if (report.skipped_lines != 0)
    row(to, "skipped", base::counted(report.skipped_lines, "broken line"));
  for (const std::string& fault : report.faults) row(to, "WRONG", fault);
  print_conclusion(to, options, report);
}

nlohmann::json to_json(const ReplayOptions& options, const ReplayReport& report) {
  nlohmann::json engines = nlohmann::json::array();
  for (const ReplayReport::PerEngine& engine : report.engines) {
    engines.push_back({{"requests", engine.requests},
                       {"blocks_hit", engine.blocks_hit},
                       {"blocks_hit_remote", engine.blocks_hit_remote},
                       {"blocks_written", engine.blocks_written}});
  }
  const replay::TimeSpent& spent = report.spent;
  nlohmann::json all = {
      {"trace", options.trace},
      {"requests", report.requests},
      {"tokens_in", report.tokens_in},
      {"blocks_total", report.blocks_total},
      {"blocks_hit", report.blocks_hit},
      {"blocks_hit_remote", report.blocks_hit_remote},
      {"blocks_written", report.blocks_written},
      {"blocks_duplicate", report.blocks_duplicate},
      {"blocks_unstored", report.blocks_unstored},
      {"block_hit_rate", report.block_hit_rate},
      {"token_hit_rate", report.token_hit_rate},
      {"evictions", report.evictions},
      {"bytes_saved", report.bytes_saved},
      {"bytes_read", report.bytes_read},
      {"bytes_written", report.bytes_written},
      {"read_gb_s", report.read_gb_s},
      {"write_gb_s", report.write_gb_s},
      {"total_gb_s", report.total_gb_s},
      {"lookup_us", to_json(report.lookup)},
      {"request_us", to_json(report.request)},
      {"verify", verify_name(options.verify)},
      {"verify_checked", report.verify_checked},
      {"verify_checked_bytes", report.verify_checked_bytes},
      {"verify_errors", report.verify_errors},
      {"stale_reads_discarded", report.stale_reads_discarded},
      {"damaged_reads", report.damaged_reads},
      {"skipped_lines", report.skipped_lines},
      {"engines", options.all_engines()},
      {"per_engine", engines},
      {"domain", options.domain},
      {"policy", options.policy},
      {"capacity_blocks", options.capacity_blocks},
      {"block_bytes", options.block_bytes},
      {"block_tokens", options.block_tokens},
      {"devices", options.devices},
      {"seed", options.seed},
      {"pool_bytes", report.pool_bytes},
      {"engine_s",
       {{"lookup", spent.lookup_s},
        {"read", spent.read_s},
        {"verify", spent.verify_s},
        {"compute", spent.compute_s},
        {"write", spent.write_s}}},
      {"setup_s", report.setup_s},
      {"wall_s", report.wall_s},
  };
  const bool has_hosts = options.hosts.count != 0;
  if (options.has_sources() || has_hosts) all["hits_by_tier"] = hits_by_tier_json(options, report);
  if (options.hosts.has_peers) all.update(peers_json(report));
  if (!options.storage.uris.empty()) all.update(storage_json(report));
  if (has_hosts) {
    all["hosts"] = hosts_json(report);
    all["host_policy"] = replay::host_policy_name(options.hosts.policy);
    all["in_order"] = options.hosts.is_in_order;
  }
  if (!report.passes.empty()) all["passes"] = passes_json(report);
  return all;
}

}  // namespace cachalot::apps

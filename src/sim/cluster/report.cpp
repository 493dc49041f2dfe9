#include "sim/cluster/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/cluster/load_series.h"

namespace cachalot::sim {
namespace {

double ratio(double part, double whole) {
  return whole == 0 ? 0 : part / whole;
}

std::uint64_t* counter_of(Outcome outcome, ClusterReport& report) {
  switch (outcome) {
    case Outcome::kCompleted:
      return &report.completed;
    case Outcome::kRejectedPrefill:
      return &report.rejected_prefill;
    case Outcome::kRejectedDecode:
      return &report.rejected_decode;
    case Outcome::kWasted:
      return &report.wasted;
    case Outcome::kNoInstance:
      return &report.no_instance;
    case Outcome::kOpen:
      break;
  }
  return nullptr;
}

// Also those that are filled in part.
std::uint64_t blocks_of(std::uint64_t tokens, std::uint64_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

// Adds the prefill of a request.
void count_hits(const Job& job, const RequestRecord& record, std::uint64_t block_tokens,
                ClusterReport& report) {
  report.input_tokens += job.input_tokens;
  report.hit_tokens += record.hit_tokens;
  report.transferred_tokens += record.transferred_tokens;
  report.hit_tokens_peer += record.peer_tokens;
  report.hit_tokens_pool += record.pool_tokens;
  report.hit_tokens_storage += record.storage_tokens;
  // Sources take turns along the prompt at the ends of blocks.
  std::uint64_t tokens = record.hit_tokens, blocks = blocks_of(tokens, block_tokens);
  report.blocks += job.blocks;
  report.hit_blocks += blocks;
  const auto count = [&](std::uint64_t of_source, std::uint64_t& counter) {
    tokens -= of_source;
    counter += blocks - blocks_of(tokens, block_tokens);
    blocks = blocks_of(tokens, block_tokens);
  };
  count(record.storage_tokens, report.hit_blocks_storage);
  count(record.pool_tokens, report.hit_blocks_pool);
  count(record.peer_tokens, report.hit_blocks_peer);
  report.full_blocks += job.input_tokens / block_tokens;
  report.hit_full_blocks += record.hit_tokens / block_tokens;
  InstanceReport& instance = report.instances[record.prefill];
  instance.input_tokens += job.input_tokens;
  instance.hit_tokens += record.hit_tokens;
}

}  // namespace

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOpen:
      return "open";
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kRejectedPrefill:
      return "rejected_prefill";
    case Outcome::kRejectedDecode:
      return "rejected_decode";
    case Outcome::kWasted:
      return "rejected_after_prefill";
    case Outcome::kNoInstance:
      return "no_instance";
  }
  return "";
}

Distribution distribution_of(std::vector<double>& values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
    return values[std::min(values.size(), std::max<std::size_t>(1, rank)) - 1];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), at(0.5), at(0.9), at(0.99)};
}

double ClusterReport::token_hit_rate() const {
  return ratio(static_cast<double>(hit_tokens), static_cast<double>(input_tokens));
}
double ClusterReport::full_block_hit_rate() const {
  return ratio(static_cast<double>(hit_full_blocks), static_cast<double>(full_blocks));
}

double ClusterReport::block_hit_rate() const {
  return ratio(static_cast<double>(hit_blocks), static_cast<double>(blocks));
}

void summarise(const Workload& workload, double ttft_slo_s, double tbt_slo_s, const TokenGaps& gaps,
               ClusterReport& report) {
  std::vector<double> ttft, tpot, e2e;
  report.requests = report.records.size();
  for (std::size_t i = 0; i < report.records.size(); ++i) {
    const RequestRecord& record = report.records[i];
    const Job& job = workload.jobs()[i];
    if (std::uint64_t* const counter = counter_of(record.outcome, report)) ++*counter;
    report.restarts += record.restarts;
    report.sim_s = std::max(report.sim_s, record.end_s);
    if (record.outcome == Outcome::kCompleted || record.outcome == Outcome::kWasted) {
      count_hits(job, record, workload.block_tokens(), report);
    }
    if (record.outcome != Outcome::kCompleted) continue;
    ttft.push_back(record.first_token_s - record.arrival_s);
    e2e.push_back(record.end_s - record.arrival_s);
    double mean_gap_s = 0;
    if (report.instances.size() > 0 && job.output_tokens > 1 &&
        record.end_s > record.first_token_s) {
      mean_gap_s =
          (record.end_s - record.first_token_s) / static_cast<double>(job.output_tokens - 1);
      tpot.push_back(mean_gap_s);
    }
    const bool has_decoded = record.end_s > record.first_token_s;
    const std::uint64_t tokens =
        job.input_tokens +
        (has_decoded ? job.output_tokens : std::min<std::uint64_t>(job.output_tokens, 1));
    report.completed_tokens += tokens;
    if (ttft.back() > ttft_slo_s || mean_gap_s > tbt_slo_s) continue;
    ++report.good;
    report.good_tokens += tokens;
  }
  report.ttft_s = distribution_of(ttft);
  report.tpot_s = distribution_of(tpot);
  report.e2e_s = distribution_of(e2e);
  if (const std::uint64_t count = gaps.ns.count(); count != 0) {
    report.tbt_s = {gaps.sum_s / static_cast<double>(count), gaps.ns.percentile(0.5) / 1e9,
                    gaps.ns.percentile(0.9) / 1e9, gaps.ns.percentile(0.99) / 1e9};
  }
  report.offered_rps = ratio(static_cast<double>(report.requests), report.records.back().arrival_s);
  report.goodput_rps = ratio(static_cast<double>(report.good), report.sim_s);
  report.slo_attainment =
      ratio(static_cast<double>(report.good), static_cast<double>(report.requests));
}

namespace {

// What the records of requests `first` to `first + count` say.
PassReport summarise_pass(const Workload& workload, std::span<const RequestRecord> records,
                          std::size_t first, std::size_t count) {
  PassReport pass;
  pass.requests = count;
  std::vector<double> ttft, tpot, e2e;
  double last_end_s = 0;
  for (std::size_t i = first; i < first + count; ++i) {
    const RequestRecord& record = records[i];
    const Job& job = workload.jobs()[i];
    last_end_s = std::max(last_end_s, record.end_s);
    if (record.outcome != Outcome::kCompleted) continue;
    ++pass.completed;
    pass.input_tokens += job.input_tokens;
    pass.hit_tokens += record.hit_tokens;
    ttft.push_back(record.first_token_s - record.arrival_s);
    e2e.push_back(record.end_s - record.arrival_s);
    if (job.output_tokens > 1 && record.end_s > record.first_token_s) {
      tpot.push_back((record.end_s - record.first_token_s) /
                     static_cast<double>(job.output_tokens - 1));
    }
  }
  pass.seconds = last_end_s - records[first].arrival_s;
  pass.completed_rps = ratio(static_cast<double>(pass.completed), pass.seconds);
  pass.ttft_s = distribution_of(ttft);
  pass.tpot_s = distribution_of(tpot);
  pass.e2e_s = distribution_of(e2e);
  return pass;
}

}  // namespace

void summarise_passes(const Workload& workload, std::size_t pass_requests, ClusterReport& report) {
  const std::size_t all = report.records.size();
  for (std::size_t first = 0; pass_requests != 0 && first < all; first += pass_requests) {
    report.passes.push_back(
        summarise_pass(workload, report.records, first, std::min(pass_requests, all - first)));
  }
}

double steady_deviation(const ClusterReport& report) {
  const double last_arrival_s = report.records.back().arrival_s;
  const auto whole = static_cast<std::size_t>(last_arrival_s / report.window_s);
  std::vector<double> steady;
  for (std::size_t w = 1; w < whole && w < report.decode_load.size(); ++w)
    steady.push_back(report.decode_load[w]);
  return standard_deviation(steady);
}

}  // namespace cachalot::sim

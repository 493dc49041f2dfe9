#include "alloc_replay_output.h"

#include <cinttypes>
#include <nlohmann/json.hpp>

namespace cachalot::apps {
namespace {

constexpr double kGiB = 1u << 30;
constexpr double kNsPerUs = 1000;

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

nlohmann::json json_of(const device_memory::CallCounts& calls) {
  return {{"reserve", calls.reserve}, {"free_range", calls.free_range},
          {"create", calls.create},   {"release", calls.release},
          {"map", calls.map},         {"set_access", calls.set_access},
          {"unmap", calls.unmap}};
}

nlohmann::json json_of(const stitch::StitchStates& states) {
  return {{"repeated", states.repeated},
          {"exact_primitive", states.exact_primitive},
          {"exact_stitched", states.exact_stitched},
          {"split", states.split},
          {"window", states.window},
          {"stitched", states.stitched},
          {"created", states.created},
          {"created_and_stitched", states.created_and_stitched},
          {"slabs", states.slabs}};
}

// Of what did not happen there is no figure.
constexpr const char* kNone = "-";

bool asked_for_nothing(const AllocRow& row) {
  return row.report.stats.allocations == 0 && row.report.stats.out_of_memory == 0;
}

bool held_nothing(const AllocRow& row) {
  return row.report.stats.peak_reserved_bytes == 0;
}

std::string share_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

std::string us_text(const base::Histogram& ns, double percentile) {
  if (ns.count() == 0) return kNone;
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", ns.percentile(percentile) / kNsPerUs);
  return text;
}

nlohmann::json json_of(const base::Histogram& ns) {
  if (ns.count() == 0) return {{"p50", nullptr}, {"p99", nullptr}};
  return {{"p50", ns.percentile(0.5) / kNsPerUs}, {"p99", ns.percentile(0.99) / kNsPerUs}};
}

nlohmann::json json_of(const replay::AllocPhase& phase) {
  return {{"name", phase.name},
          {"allocations", phase.allocations},
          {"driver_allocations", phase.driver_allocations},
          {"stitches", phase.stitches},
          {"reserved_bytes", phase.reserved_bytes}};
}

void print_iterations(std::FILE* out, const AllocRow& row) {
  constexpr std::size_t kMostShown = 8;
  const auto& iterations = row.report.iterations;
  for (std::size_t i = 0; i < iterations.size() && i < kMostShown; ++i) {
    const replay::AllocPhase& each = iterations[i];
    std::fprintf(out,
                 "  %-24.24s %8" PRIu64 " allocations, %6" PRIu64
                 " with driver calls (%s), %5" PRIu64 " stitches, %9.3f GiB at its end\n",
                 each.name.c_str(), each.allocations, each.driver_allocations,
                 each.allocations == 0 ? kNone : share_text(each.driver_share()).c_str(),
                 each.stitches, gib(each.reserved_bytes));
  }
  if (iterations.size() > kMostShown) {
    std::fprintf(out, "  … and %zu iterations more\n", iterations.size() - kMostShown);
  }
}

void print_states(std::FILE* out, const stitch::StitchStates& states) {
  std::fprintf(out,
               "  S1 exact: %" PRIu64 " repeated, %" PRIu64 " primitive, %" PRIu64
               " stitched; S2 larger: %" PRIu64 " split, %" PRIu64 " window; S3 stitched: %" PRIu64
               "; S4 created: %" PRIu64 " alone, %" PRIu64 " stitched; slabs %" PRIu64 "\n",
               states.repeated, states.exact_primitive, states.exact_stitched, states.split,
               states.window, states.stitched, states.created, states.created_and_stitched,
               states.slabs);
}

void print_calls(std::FILE* out, const AllocRow& row) {
  const device_memory::CallCounts& calls = row.report.calls;
  std::fprintf(out,
               "  driver calls: %" PRIu64 " reserve, %" PRIu64 " create, %" PRIu64 " map, %" PRIu64
               " set_access, %" PRIu64 " unmap, %" PRIu64 " release, %" PRIu64 " free_range",
               calls.reserve, calls.create, calls.map, calls.set_access, calls.unmap, calls.release,
               calls.free_range);
  if (row.charged_ms) std::fprintf(out, "; on a GPU about %.0f ms in all", *row.charged_ms);
  std::fputc('\n', out);
}

void print_details(std::FILE* out, const AllocRow& row) {
  const replay::AllocReport& report = row.report;
  std::fprintf(out, "%s, on %s\n", row.allocator.c_str(), row.memory.c_str());
  if (asked_for_nothing(row)) {
    std::fprintf(out, "  nothing was asked for: no allocation among the %" PRIu64 " events\n",
                 report.events);
  }
  print_calls(out, row);
  if (row.states) print_states(out, *row.states);
  print_iterations(out, row);
  if (report.stats.out_of_memory != 0) {
    std::fprintf(out, "  out of memory: %" PRIu64 " requests refused\n",
                 report.stats.out_of_memory);
  }
  if (row.verify != replay::Verify::kOff) {
    std::fprintf(out, "  bytes: %" PRIu64 " blocks checked, %" PRIu64 " wrong\n",
                 report.checked_blocks, report.wrong_blocks);
  }
}

}  // namespace

void print_table(std::FILE* out, std::span<const AllocRow> rows) {
  std::fprintf(out, "%-10s %9s %9s %9s %9s %12s %9s %9s %9s %8s\n", "allocator", "live GiB",
               "held GiB", "used", "stitches", "driver calls", "late", "p50 us", "p99 us",
               "wall s");
  for (const AllocRow& row : rows) {
    const replay::AllocReport& report = row.report;
    const std::string used = held_nothing(row) ? kNone : share_text(report.stats.utilization());
    const std::string late =
        report.second_half.allocations == 0 ? kNone : share_text(report.second_half.driver_share());
    std::fprintf(out, "%-10s %9.3f %9.3f %9s %9" PRIu64 " %12" PRIu64 " %9s %9s %9s %8.2f\n",
                 row.allocator.c_str(), gib(report.stats.peak_live_bytes),
                 gib(report.stats.peak_reserved_bytes), used.c_str(), report.stats.stitches,
                 report.calls.total(), late.c_str(), us_text(report.allocate_ns, 0.5).c_str(),
                 us_text(report.allocate_ns, 0.99).c_str(), report.wall_s);
  }
  std::fputs(
      "live: asked for at the peak; held: physical memory at its peak; used: live of held; "
      "late: allocations of the second half that made a driver call\n\n",
      out);
  for (const AllocRow& row : rows) print_details(out, row);
}

nlohmann::json json_of(const AllocRow& row) {
  const replay::AllocReport& report = row.report;
  nlohmann::json iterations = nlohmann::json::array();
  for (const replay::AllocPhase& each : report.iterations) iterations.push_back(json_of(each));
  nlohmann::json json = {{"allocator", row.allocator},
                         {"memory", row.memory},
                         {"scale", row.scale},
                         {"events", report.events},
                         {"allocations", report.stats.allocations},
                         {"peak_live_bytes", report.stats.peak_live_bytes},
                         {"peak_reserved_bytes", report.stats.peak_reserved_bytes},
                         {"utilization", report.stats.utilization()},
                         {"stitches", report.stats.stitches},
                         {"driver_calls", report.calls.total()},
                         {"calls", json_of(report.calls)},
                         {"driver_allocations", report.stats.driver_allocations},
                         {"second_half", json_of(report.second_half)},
                         {"iterations", std::move(iterations)},
                         {"alloc_us", json_of(report.allocate_ns)},
                         {"free_us", json_of(report.free_ns)},
                         {"oom", report.stats.out_of_memory},
                         {"verify_checked", report.checked_blocks},
                         {"verify_errors", report.wrong_blocks},
                         {"wall_s", report.wall_s}};
  if (held_nothing(row)) json["utilization"] = nullptr;
  if (row.states) json["states"] = json_of(*row.states);
  if (row.charged_ms) json["charged_ms"] = *row.charged_ms;
  return json;
}

}  // namespace cachalot::apps

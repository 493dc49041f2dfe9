#include "measure.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "os/topology.h"

namespace cachalot::apps::bench {
namespace {

std::uint64_t read_clock(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return 0;
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Before a benchmark pinned anything.
const std::vector<int>& all_cores() {
  static const std::vector<int> all = os::online_cores();
  return all;
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  const auto at = [&](std::size_t index) {
    std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index),
                     samples.end());
    return samples[index];
  };
  const std::size_t n = samples.size();
  return {at(n / 2), at(n / 4), at(n - 1 - n / 4)};
}

void add_spread(Row& row, const Spread& spread) {
  row.extras.emplace_back("value_low", spread.low);
  row.extras.emplace_back("value_high", spread.high);
}

std::uint64_t now_ns() {
  return base::SteadyClock::read();
}

void RateMeter::end_chunk() {
  const std::uint64_t now = now_ns();
  samples_.push_back(static_cast<double>(in_chunk_) * 1e3 / static_cast<double>(now - since_ns_));
  in_chunk_ = 0;
  since_ns_ = now;
}

std::uint64_t own_cpu_ns() {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

std::uint64_t cpu_ns_of(pid_t process) {
  clockid_t clock{};
  return clock_getcpuclockid(process, &clock) == 0 ? read_clock(clock) : 0;
}

Cores take_cores() {
  const std::vector<int>& all = all_cores();
  const Cores cores{all.back(), all.front(), all.size() > 1};
  (void)os::pin_to_core(cores.own);
  return cores;
}

void release_cores() {
  (void)os::run_on(all_cores());
}

std::unique_ptr<memory::Domain> make_domain(memory::DomainKind kind) {
  return kind == memory::DomainKind::kCoherent ? memory::make_coherent_domain()
                                               : memory::make_noncoherent_domain();
}

std::string suffix(memory::DomainKind kind) {
  return std::string("/") + memory::domain_name(kind);
}

void show_progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

void clear_progress() {
  show_progress("");
}

}  // namespace cachalot::apps::bench

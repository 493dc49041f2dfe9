// `make soak`: kills and stops the processes of a pool, thousands of times, at every step of the
// protocol and inside copies, while readers check every byte they are handed.
//
//   cachalot_soak [--injections N] [--seconds S] [--seed N] [--domain D] [--break RULE] [--only keeper]
//
// Ends after N injections or S seconds, whichever comes first. Exit code 0: no fault.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "injector.h"

namespace cachalot::crash {
namespace {

struct Options {
  std::uint64_t injections = 10'000;
  std::uint64_t seconds = 3600;
  std::uint64_t seed = 1;
  const char* domain = "both";
  std::uint32_t broken = 0;
  bool only_keeper_kills = false;
};

[[noreturn]] void usage() {
  std::fprintf(
      stderr,
      "usage: cachalot_soak [--injections N] [--seconds S] [--seed N]\n"
      "                     [--domain coherent|noncoherent|both] [--break RULE_NUMBER]\n"
      "                     [--only keeper: kill keepers at random instants, and nobody else]\n");
  std::exit(2);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    if (i + 1 == count) usage();
    const std::string flag = arguments[i];
    const char* const value = arguments[++i];
    if (flag == "--domain") {
      options.domain = value;
      continue;
    }
    if (flag == "--only") {
      if (std::strcmp(value, "keeper") != 0) usage();
      options.only_keeper_kills = true;
      continue;
    }
    char* end = nullptr;
    const std::uint64_t number = std::strtoull(value, &end, 10);
    if (*value == 0 || *end != 0) usage();
    if (flag == "--injections")
      options.injections = number;
    else if (flag == "--seconds")
      options.seconds = number;
    else if (flag == "--seed")
      options.seed = number;
    else if (flag == "--break")
      options.broken = static_cast<std::uint32_t>(number);
    else
      usage();
  }
  return options;
}

void print(const Tally& tally, const Arena& arena, const char* domain, double seconds) {
  const auto kind = [&](Victim victim, Action action) {
    return static_cast<unsigned long long>(
        tally.by_kind[static_cast<std::size_t>(victim)][static_cast<std::size_t>(action)]);
  };
  std::printf("\n%s: %llu injections in %.0f s, %llu orders that were never reached\n", domain,
              static_cast<unsigned long long>(tally.injected), seconds,
              static_cast<unsigned long long>(tally.missed));
  std::printf("  %-10s %8s %8s\n", "", "killed", "stopped");
  std::printf("  %-10s %8llu %8llu\n", "clients", kind(Victim::kClient, Action::kKill),
              kind(Victim::kClient, Action::kStop));
  std::printf("  %-10s %8llu %8llu\n", "keepers", kind(Victim::kKeeper, Action::kKill),
              kind(Victim::kKeeper, Action::kStop));
  std::printf("  inside copies: %llu (%.0f %%)\n", static_cast<unsigned long long>(tally.in_copies),
              100.0 * static_cast<double>(tally.in_copies) /
                  static_cast<double>(tally.injected ? tally.injected : 1));
  std::uint64_t bytes = 0, hits = 0, gap_ns = 0, store_gap_ns = 0;
  for (std::uint32_t i = 0; i < kClients; ++i) {
    bytes += arena.desks[i].verified_bytes.load();
    hits += arena.desks[i].hits.load();
    gap_ns = std::max(gap_ns, arena.desks[i].longest_read_gap_ns.load());
    store_gap_ns = std::max(store_gap_ns, arena.desks[i].longest_store_gap_ns.load());
  }
  std::printf(
      "  %llu blocks read, %.2f GiB verified; longest recovery %.0f ms (%s); faults: %llu %s\n",
      static_cast<unsigned long long>(hits), static_cast<double>(bytes) / (1u << 30),
      static_cast<double>(tally.longest_recovery_ns) / 1e6, tally.longest_recovery.c_str(),
      static_cast<unsigned long long>(arena.faults.load()), arena.first_fault);
  std::printf("  longest gap of a client between two reads %.1f ms, between two puts %.1f ms\n",
              static_cast<double>(gap_ns) / 1e6, static_cast<double>(store_gap_ns) / 1e6);
  for (std::size_t point = 0; point < tally.by_point.size(); ++point) {
    std::printf(
        "    %-24s %6llu\n",
        point == 0 ? "random instant" : base::fail_point_name(static_cast<base::FailPoint>(point)),
        static_cast<unsigned long long>(tally.by_point[point]));
  }
}

bool soak(const Options& options, memory::DomainKind domain, std::uint64_t injections,
          double seconds) {
  Setting setting;
  setting.path = "/dev/shm/cachalot_soak." + std::to_string(getpid());
  setting.domain = domain;
  setting.only_keeper_kills = options.only_keeper_kills;
  setting.broken = static_cast<memory::Rule>(options.broken);
  Arena* const arena = make_arena();
  if (arena == nullptr) return false;
  Injector injector(setting, *arena, options.seed);
  const std::uint64_t start_ns = base::SteadyClock::read();
  const auto elapsed = [&] {
    return static_cast<double>(base::SteadyClock::read() - start_ns) / 1e9;
  };
  bool ok = injector.begin();
  while (ok && injector.tally().injected < injections && elapsed() < seconds) {
    ok = injector.inject();
    if (isatty(2) != 0 && injector.tally().injected % 50 == 0) {
      std::fprintf(stderr, "\r%s: %llu injections", memory::domain_name(domain),
                   static_cast<unsigned long long>(injector.tally().injected));
    }
  }
  ok = ok && injector.end();
  print(injector.tally(), *arena, memory::domain_name(domain), elapsed());
  return ok;
}

}  // namespace
}  // namespace cachalot::crash

int main(int count, char** arguments) {
  using namespace cachalot;
  using namespace cachalot::crash;
  const Options options = parse(count, arguments);
  base::set_log_level(base::LogLevel::kOff);
  bool ok = true;
  for (const memory::DomainKind domain :
       {memory::DomainKind::kCoherent, memory::DomainKind::kNoncoherent}) {
    const bool is_both = std::strcmp(options.domain, "both") == 0;
    if (!is_both && std::strcmp(options.domain, memory::domain_name(domain)) != 0) continue;
    const std::uint64_t share = is_both ? 2 : 1;
    ok = soak(options, domain, options.injections / share,
              static_cast<double>(options.seconds) / static_cast<double>(share)) &&
         ok;
    if (!ok) break;
  }
  return ok ? 0 : 1;
}

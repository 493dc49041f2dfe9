// `make soak-transfer`: prefill and decode on two hosts, one fault after the other: {a side dies, stalls, restarts with its
// address, cancels; the link is cut or half-open} x {before, during, after} a transfer, with checksums, and 1 % of the
// received payloads damaged. fault_rig.h says what is a fault of the product.
//
//   transfer_soak [--injections N] [--seed N] [--slack-ms N] [--long]
//
//   --long  N stalls of more than 30 s, against deadlines of 30 s
//
// Exit code 0: no fault; 1: a fault; 77: no network namespaces here.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fault_rig.h"

namespace cachalot::transfer {
namespace {

struct Options {
  std::uint64_t injections = 60, seed = 1, slack_ms = 5000;
  bool is_long = false;
};

bool parse(int count, char** words, Options& options) {
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    std::uint64_t* value = word == "--injections" ? &options.injections
                           : word == "--seed"     ? &options.seed
                           : word == "--slack-ms" ? &options.slack_ms
                                                  : nullptr;
    if (word == "--long") {
      options.is_long = true;
    } else if (char* end = nullptr; value != nullptr && i + 1 < count) {
      *value = std::strtoull(words[++i], &end, 10);
      if (*end != 0) return false;
    } else {
      return false;
    }
  }
  return true;
}

void print(const FaultRig& rig) {
  std::printf("%-17s %-7s %10s %8s %6s %7s %6s\n", "fault", "phase", "injections", "running",
              "done", "failed", "gone");
  for (const auto& [key, c] : rig.cells()) {
    std::printf("%-17s %-7s %10llu %8llu %6llu %7llu %6llu\n", name_of(key.first),
                name_of(key.second), static_cast<unsigned long long>(c.injections),
                static_cast<unsigned long long>(c.running), static_cast<unsigned long long>(c.done),
                static_cast<unsigned long long>(c.failed), static_cast<unsigned long long>(c.gone));
  }
  const Totals& t = rig.totals();
  std::printf(
      "running: bytes had arrived and more were to come; gone: the decode process was killed\n"
      "%llu payloads damaged, %.1f MB received, %llu requests after a fault repeated, at most %.0f "
      "ms "
      "beyond a deadline\n",
      static_cast<unsigned long long>(t.damaged), static_cast<double>(t.received) * 1e-6,
      static_cast<unsigned long long>(t.retries), static_cast<double>(t.longest_over_ns) * 1e-6);
}

int run(const Options& options) {
  Result<NetnsLink> link =
      NetnsLink::start(CACHALOT_NETNS_LINK, {"--seed", std::to_string(options.seed)});
  if (!link) {
    std::fprintf(stderr, "transfer_soak: %s\n", link.error().message);
    return link.error().code == Code::kUnsupported ? 77 : 1;
  }
  Result<FaultPeer> prefill = FaultPeer::make(), decode = FaultPeer::make();
  if (!prefill || !decode) return 1;
  FaultRig rig(*link, *std::move(prefill), *std::move(decode), options.slack_ms * 1'000'000,
               options.is_long ? 30'000'000'000 : 0);
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t count = options.injections;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto cell = static_cast<std::uint32_t>(i % (kFaults * kPhases));
    const Fault fault = options.is_long
                            ? (i % 2 == 0 ? Fault::kPrefillStalls : Fault::kDecodeStalls)
                            : static_cast<Fault>(cell / kPhases);
    const Phase phase = static_cast<Phase>(options.is_long ? i / 2 % kPhases : cell % kPhases);
    const Status status = rig.inject(fault, phase, base::mix64(options.seed * 1'000'003 + i));
    if (!status) {
      print(rig);
      std::printf("FAULT in injection %llu of seed %llu (%s, %s the transfer): %s\n",
                  static_cast<unsigned long long>(i), static_cast<unsigned long long>(options.seed),
                  name_of(fault), name_of(phase), status.error().message);
      return 1;
    }
  }
  print(rig);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("seed %llu: %llu injections in %.0f s, no fault\n",
              static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(count),
              seconds.count());
  return 0;
}

}  // namespace
}  // namespace cachalot::transfer

int main(int count, char** words) {
  cachalot::transfer::Options options;
  if (!cachalot::transfer::parse(count, words, options)) {
    std::fprintf(stderr,
                 "usage: transfer_soak [--injections N] [--seed N] [--slack-ms N] [--long]\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return cachalot::transfer::run(options);
}

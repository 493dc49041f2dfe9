// bench transfer-sizes and transfer-fragments: over TCP, beside ucx_perftest and beside large pieces.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "engine_pair.h"
#include "kv_transfer.h"
#include "mooncake_peer.h"
#include "mooncake_script.h"
#include "ucx_peer.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::uint64_t kLargeBytes = 1u << 20;  // from here on the bar holds
constexpr std::uint64_t kMostBytes = 64u << 20;

// Transfers of this size in one sample: many bytes, but not too many small transfers.
std::uint64_t transfers_of(const Settings& settings, std::uint64_t bytes) {
  const std::uint64_t sample_bytes = settings.quick ? 64u << 20 : 512u << 20;
  return std::clamp<std::uint64_t>(sample_bytes / bytes, 4, settings.quick ? 1000 : 8000);
}

struct Pairs {
  std::vector<double> own, limit, ratios;

  void add(double own_gb_s, double limit_gb_s) {
    own.push_back(own_gb_s);
    if (limit_gb_s == 0) return;
    limit.push_back(limit_gb_s);
    ratios.push_back(own_gb_s / limit_gb_s);
  }
};

Row row_of(std::string name, const Pairs& pairs, const char* limit, Target target) {
  const Spread own = spread_of(pairs.own);
  Row row{std::move(name), own.median, "GB/s", "", 0};
  add_spread(row, own);
  if (pairs.limit.empty()) return row;
  row.baseline = limit;
  row.baseline_value = median_of(pairs.limit);
  row.target = target;
  const Spread ratio = spread_of(pairs.ratios);
  row.extras.insert(row.extras.end(), {{"pair_ratio", ratio.median},
                                       {"pair_ratio_low", ratio.low},
                                       {"pair_ratio_high", ratio.high}});
  return row;
}

// Of ucx_perftest, in GB/s; 0 if it is not installed.
Result<double> ucx_rate(std::uint64_t bytes, std::uint64_t transfers, const Cores* cores) {
  const Result<double> rate = run_ucx_perftest(bytes, transfers, cores);
  if (rate) return *rate / 1e9;
  if (rate.error().code == Code::kUnsupported) return 0.0;
  return rate.error();
}

Result<double> own_rate(EnginePair& pair, std::uint64_t bytes, std::uint64_t transfers) {
  CACHALOT_TRY_ASSIGN(const double rate,
                      pair.rate({.bytes = bytes,
                                 .transfers = transfers,
                                 .warm_up = std::min<std::uint64_t>(transfers, 20)}));
  return rate / 1e9;
}

// @param cores  of both programs; null: where the system runs them
Status measure_tcp(const Settings& settings, Report& report, const PairMemory& memory,
                   const Cores* cores) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> pair,
                      EnginePair::open(Route::kTcp, memory, {}, cores));
  std::unique_ptr<MooncakePeer> mooncake;
  if (!settings.mooncake.empty()) {
    if (auto opened = MooncakePeer::open(settings.mooncake, kMooncakeEngineScript, cores)) {
      mooncake = std::move(*opened);
    } else if (opened.error().code == Code::kUnsupported) {
      if (cores == nullptr)
        report.note("no rows of Mooncake: " + settings.mooncake + ": " + opened.error().message);
    } else {
      return opened.error();
    }
  }
  bool has_ucx = true;
  for (std::uint64_t bytes = cores == nullptr ? 4096 : kLargeBytes; bytes <= kMostBytes;
       bytes *= 4) {
    const std::uint64_t transfers = transfers_of(settings, bytes);
    Pairs pairs, beside;
    for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
      show_progress("transfer tcp " + size_name(bytes));
      // Each goes first in every second pair.
      double ucx = 0, own = 0;
      for (const bool is_own : {turn % 2 == 1, turn % 2 == 0}) {
        if (is_own) {
          CACHALOT_TRY_ASSIGN(own, own_rate(*pair, bytes, transfers));
        } else if (has_ucx) {
          CACHALOT_TRY_ASSIGN(ucx, ucx_rate(bytes, transfers, cores));
          has_ucx = ucx != 0;
        }
      }
      pairs.add(own, ucx);
      if (!mooncake) continue;
      CACHALOT_TRY_ASSIGN(const double other, mooncake->ask(bytes, transfers));
      beside.add(own, other / 1e9);
    }
    const std::string name = "tcp/" + size_name(bytes) + (cores == nullptr ? "" : "/cores");
    report.add(row_of(name, pairs, "ucx_perftest",
                      bytes >= kLargeBytes ? ratio_at_least(0.95) : Target{}));
    if (mooncake) report.add(row_of(name + "/mooncake", beside, "Mooncake's engine", {}));
  }
  if (!has_ucx)
    report.note("without a limit: the program ucx_perftest (package ucx-utils) is not installed");
  return {};
}

// Beside a link that is not encrypted.
Status measure_encrypted(const Settings& settings, Report& report, const PairMemory& memory) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> open,
                      EnginePair::open(Route::kTcp, memory));
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> encrypted,
                      EnginePair::open(Route::kEncrypted, memory));
  for (std::uint64_t bytes = 4096; bytes <= kMostBytes; bytes *= 4) {
    const std::uint64_t transfers = transfers_of(settings, bytes);
    Pairs pairs;
    for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
      show_progress("transfer encrypted " + size_name(bytes));
      CACHALOT_TRY_ASSIGN(const double plain, own_rate(*open, bytes, transfers));
      CACHALOT_TRY_ASSIGN(const double own, own_rate(*encrypted, bytes, transfers));
      pairs.add(own, plain);
    }
    report.add(row_of("encrypted/" + size_name(bytes), pairs, "tcp", {}));
  }
  return {};
}

Status measure_shared(const Settings& settings, Report& report, const PairMemory& memory) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> pair,
                      EnginePair::open(Route::kShared, memory));
  for (std::uint64_t bytes = 4096; bytes <= kMostBytes; bytes *= 4) {
    Pairs pairs;
    for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
      show_progress("transfer shm " + size_name(bytes));
      CACHALOT_TRY_ASSIGN(const double own, own_rate(*pair, bytes, transfers_of(settings, bytes)));
      pairs.add(own, 0);
    }
    report.add(row_of("shm/" + size_name(bytes), pairs, "", {}));
  }
  return {};
}

}  // namespace

std::string size_name(std::uint64_t bytes) {
  if (bytes >= 1u << 20 && bytes % (1u << 20) == 0) return std::to_string(bytes >> 20) + "Mi";
  return bytes < 1u << 10 ? std::to_string(bytes) : std::to_string(bytes >> 10) + "Ki";
}

Status bench_transfer_sizes(const Settings& settings, Report& report) {
  CACHALOT_TRY_ASSIGN(const PairMemory memory, PairMemory::make(kMostBytes));
  CACHALOT_TRY(measure_tcp(settings, report, memory, nullptr));
  const Cores cores = take_cores();
  release_cores();
  if (cores.are_two) {
    CACHALOT_TRY(measure_tcp(settings, report, memory, &cores));
  } else {
    report.note("no rows with a core for each process: there is one core");
  }
  CACHALOT_TRY(measure_encrypted(settings, report, memory));
  CACHALOT_TRY(measure_shared(settings, report, memory));
  report.note("Two processes, 32 transfers outstanding, all of the same bytes as in ucx_perftest.");
  report.note("tcp: 127.0.0.1, beside ucx_perftest -t tag_bw -E sleep; shm: out of a shared file.");
  report.note("encrypted: with a cluster's key, beside tcp without one.");
  report.note("cores: each process of both programs runs on a core of its own.");
  return {};
}

Status bench_transfer_fragments(const Settings& settings, Report& report) {
  constexpr std::uint64_t kBytes = 16u << 20;
  constexpr std::array<std::uint64_t, 10> kPieces = {
      256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 20 << 10, 64 << 10, 144 << 10};
  CACHALOT_TRY_ASSIGN(const PairMemory memory, PairMemory::make(kBytes * 2));
  for (const Route route : {Route::kTcp, Route::kShared}) {
    const std::string prefix = route == Route::kTcp ? "tcp/" : "shm/";
    CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> pair, EnginePair::open(route, memory));
    for (const std::uint64_t piece : kPieces) {
      if (settings.quick && piece != 20 << 10) continue;
      // Beside it, one transfer for each fragment.
      Pairs together, one, many;
      for (std::uint32_t turn = 0; turn < settings.repeats; ++turn) {
        show_progress("transfer fragments " + prefix + size_name(piece));
        PushLoad load{.bytes = kBytes / piece * piece,
                      .transfers = transfers_of(settings, kBytes),
                      .warm_up = 4};
        load.outstanding = 4;
        CACHALOT_TRY_ASSIGN(const double large, pair->rate(load));
        load.piece_bytes = piece;
        CACHALOT_TRY_ASSIGN(const double small, pair->rate(load));
        together.add(small / 1e9, large / 1e9);
        load = {.bytes = piece,
                .transfers = settings.quick ? 200u : 2000u,
                .warm_up = 100,
                .walks = true};
        load.outstanding = 64;
        CACHALOT_TRY_ASSIGN(const double rate_many, pair->rate(load));
        many.add(rate_many / 1e9, large / 1e9);
        load.outstanding = 1;
        CACHALOT_TRY_ASSIGN(const double rate_one, pair->rate(load));
        one.add(rate_one / 1e9, large / 1e9);
      }
      const std::string name = prefix + size_name(piece);
      report.add(row_of(name + "/together", together, "in one piece",
                        piece == 20 << 10 ? ratio_at_least(0.8) : Target{}));
      report.add(row_of(name + "/each_64", many, "in one piece", {}));
      report.add(row_of(name + "/each_1", one, "in one piece", {}));
    }
  }
  report.note("together: transfers of 16 MiB, whose pieces lie twice as far apart on both sides.");
  report.note("each_64, each_1: one transfer for each piece, 64 or 1 outstanding.");
  return {};
}

}  // namespace cachalot::apps::bench

// bench transfer-checksums: pushes whose bytes are verified, beside the same pushes without checksums.
#include <memory>
#include <string>
#include <vector>

#include "engine_pair.h"
#include "kv_transfer.h"

namespace cachalot::apps::bench {

Status bench_transfer_checksums(const Settings& settings, Report& report) {
  CACHALOT_TRY_ASSIGN(const PairMemory memory,
                      PairMemory::make(settings.quick ? 128u << 20 : 512u << 20));
  for (const Route route : {Route::kTcp, Route::kShared}) {
    const std::string prefix = route == Route::kTcp ? "tcp/" : "shm/";
    // The one that is opened last ends first: its process has the other one's sockets, too.
    CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> plain, EnginePair::open(route, memory));
    CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> verified,
                        EnginePair::open(route, memory, {}, nullptr, true));
    for (const std::uint64_t bytes : {std::uint64_t{1} << 20, std::uint64_t{16} << 20}) {
      const PushLoad load{
          .bytes = bytes, .transfers = memory.bytes() / bytes, .outstanding = 16, .walks = true};
      std::vector<double> plain_gb_s, verified_gb_s;
      for (std::uint32_t turn = 0; turn < settings.repeats + 1; ++turn) {
        show_progress("transfer checksums " + prefix + size_name(bytes));
        CACHALOT_TRY_ASSIGN(const double without, plain->rate(load));
        CACHALOT_TRY_ASSIGN(const double with, verified->rate(load));
        if (turn == 0) continue;  // page tables are filled
        plain_gb_s.push_back(without / 1e9);
        verified_gb_s.push_back(with / 1e9);
      }
      const Spread spread = spread_of(verified_gb_s);
      Row row{prefix + size_name(bytes), spread.median,         "GB/s",
              "without checksums",       median_of(plain_gb_s), ratio_at_least(0.77)};
      add_spread(row, spread);
      report.add(std::move(row));
    }
  }
  report.note("All bytes differ; 16 transfers outstanding. Bar: 1.3 times the time without.");
  return {};
}

}  // namespace cachalot::apps::bench

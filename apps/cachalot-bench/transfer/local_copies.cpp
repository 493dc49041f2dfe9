// bench transfer-memory: between two processes of one machine, beside one plain copy of the same bytes.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "engine_pair.h"
#include "kv_transfer.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::uint64_t kBounceBytes = 1u << 20;

// One memcpy for each transfer.
double plain_copy(const PairMemory& memory, std::uint64_t bytes) {
  const std::uint64_t start_ns = now_ns();
  for (std::uint64_t at = 0; at + bytes <= memory.bytes(); at += bytes)
    std::memcpy(memory.target() + at, memory.shared_source() + at, bytes);
  return static_cast<double>(memory.bytes()) / static_cast<double>(now_ns() - start_ns);
}

// The sender packs into a buffer, the receiver unpacks from it.
double two_step_copy(const PairMemory& memory, std::byte* bounce, std::uint64_t bytes) {
  const std::uint64_t step = std::min(bytes, kBounceBytes);
  const std::uint64_t start_ns = now_ns();
  for (std::uint64_t at = 0; at + step <= memory.bytes(); at += step) {
    std::memcpy(bounce, memory.shared_source() + at, step);
    std::memcpy(memory.target() + at, bounce, step);
  }
  return static_cast<double>(memory.bytes()) / static_cast<double>(now_ns() - start_ns);
}

struct Rates {
  const char* name;
  Target target;
  std::vector<double> gb_s = {}, ratios = {};

  void add(double rate, double copy) {
    gb_s.push_back(rate);
    ratios.push_back(rate / copy);
  }
};

Result<double> push_all(EnginePair& pair, const PairMemory& memory, std::uint64_t bytes) {
  const PushLoad load{
      .bytes = bytes, .transfers = memory.bytes() / bytes, .outstanding = 16, .walks = true};
  CACHALOT_TRY_ASSIGN(const double rate, pair.rate(load));
  return rate / 1e9;
}

}  // namespace

Status bench_transfer_memory(const Settings& settings, Report& report) {
  CACHALOT_TRY_ASSIGN(const PairMemory memory,
                      PairMemory::make(settings.quick ? 128u << 20 : 512u << 20));
  std::vector<std::byte> bounce(kBounceBytes);
  // The one that is opened last ends first: its process has the other one's sockets, too.
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> shared_pair,
                      EnginePair::open(Route::kShared, memory));
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> foreign_pair,
                      EnginePair::open(Route::kForeign, memory));
  for (const std::uint64_t bytes : {std::uint64_t{1} << 20, std::uint64_t{16} << 20}) {
    std::array<Rates, 3> rates = {Rates{"shared", ratio_at_least(0.9)},
                                  Rates{"process_vm_readv", {}}, Rates{"two_step", {}}};
    std::vector<double> copies;
    for (std::uint32_t turn = 0; turn < settings.repeats + 1; ++turn) {
      show_progress("transfer memory " + size_name(bytes));
      const double copy = plain_copy(memory, bytes);
      CACHALOT_TRY_ASSIGN(const double shared, push_all(*shared_pair, memory, bytes));
      CACHALOT_TRY_ASSIGN(const double foreign, push_all(*foreign_pair, memory, bytes));
      const double two_step = two_step_copy(memory, bounce.data(), bytes);
      if (turn == 0) continue;  // page tables are filled
      copies.push_back(copy);
      rates[0].add(shared, copy);
      rates[1].add(foreign, copy);
      rates[2].add(two_step, copy);
    }
    for (const Rates& way : rates) {
      const Spread spread = spread_of(way.gb_s), ratio = spread_of(way.ratios);
      Row row{std::string(way.name) + "/" + size_name(bytes),
              spread.median,
              "GB/s",
              "one plain copy",
              median_of(copies),
              way.target};
      add_spread(row, spread);
      row.extras.insert(row.extras.end(), {{"pair_ratio", ratio.median},
                                           {"pair_ratio_low", ratio.low},
                                           {"pair_ratio_high", ratio.high}});
      report.add(std::move(row));
    }
    if (settings.quick) break;
  }
  report.note(
      "All bytes differ; huge pages where the system gives them. 16 transfers outstanding.");
  report.note("shared: the sender's memory is a shared file; two_step: through a buffer of 1 MiB.");
  return {};
}

}  // namespace cachalot::apps::bench

// bench transfer-layers: how much of a transfer a layer-wise push hides behind the computation.
#include <array>
#include <string>
#include <vector>

#include "engine_pair.h"
#include "kv_transfer.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::array kRatios = {0.25, 0.5, 1.0, 2.0, 4.0};

struct Times {
  std::vector<double> layered_ms = {}, whole_ms = {}, compute_ms = {}, hidden = {};
};

Status measure(const Settings& settings, Report& report, Route route, const PairMemory& memory,
               LayerLoad load) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> pair, EnginePair::open(route, memory));
  const std::string prefix = route == Route::kTcp ? "tcp/" : "shm/";
  std::array<Times, kRatios.size()> times;
  std::vector<double> copies_ms;
  for (std::uint32_t turn = 0; turn < settings.repeats + 1; ++turn) {
    for (std::size_t i = 0; i < kRatios.size(); ++i) {
      show_progress("transfer layers " + prefix + std::to_string(kRatios[i]));
      load.compute_ns = 0;
      load.is_whole = true;
      CACHALOT_TRY_ASSIGN(const double copy, pair->push_layers(load));
      load.compute_ns = static_cast<std::uint64_t>(copy * kRatios[i] * 1e9 / load.layers);
      const double compute = static_cast<double>(load.compute_ns * load.layers) / 1e9;
      CACHALOT_TRY_ASSIGN(const double whole, pair->push_layers(load));
      load.is_whole = false;
      CACHALOT_TRY_ASSIGN(const double layered, pair->push_layers(load));
      if (turn == 0) continue;  // warm-up
      copies_ms.push_back(copy * 1e3);
      times[i].layered_ms.push_back(layered * 1e3);
      times[i].whole_ms.push_back(whole * 1e3);
      times[i].compute_ms.push_back(compute * 1e3);
      times[i].hidden.push_back(100 * (1 - (layered - compute) / copy));
    }
  }
  for (std::size_t i = 0; i < kRatios.size(); ++i) {
    std::array<char, 16> ratio{};
    std::snprintf(ratio.data(), ratio.size(), "%g", kRatios[i]);
    const Spread hidden = spread_of(times[i].hidden);
    const bool is_bar = kRatios[i] == 1 && route == Route::kShared;
    Row share{prefix + "hidden/" + ratio.data(),     hidden.median, "%", "", 0,
              is_bar ? value_at_least(80) : Target{}};
    add_spread(share, hidden);
    report.add(std::move(share));
    Row time{prefix + "time/" + ratio.data(), median_of(times[i].layered_ms), "ms", "whole",
             median_of(times[i].whole_ms)};
    time.extras = {{"compute_ms", median_of(times[i].compute_ms)},
                   {"copy_ms", median_of(copies_ms)}};
    report.add(std::move(time));
  }
  return {};
}

}  // namespace

Status bench_transfer_layers(const Settings& settings, Report& report) {
  // Of both engines' threads; the sender computes on the other core.
  (void)take_cores();
  LayerLoad load;
  if (settings.quick) load.layer_bytes = 1u << 20;
  CACHALOT_TRY_ASSIGN(const PairMemory memory, PairMemory::make(load.layers * load.layer_bytes));
  CACHALOT_TRY(measure(settings, report, Route::kShared, memory, load));
  CACHALOT_TRY(measure(settings, report, Route::kTcp, memory, load));
  report.note(
      "32 layers; the last part of a name: time to compute a layer / time to copy it. Computing is "
      "spinning on the other core.");
  report.note(
      "hidden: 1 - (time - computation) / copy. With tcp the sender's copy needs the core that "
      "computes, or waits for the receiver's.");
  return {};
}

}  // namespace cachalot::apps::bench

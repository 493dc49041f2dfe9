// bench transfer-formula: KV of real models, beside bytes / (link * coefficient).
#include <array>
#include <string>
#include <vector>

#include "engine_pair.h"
#include "kv_transfer.h"

namespace cachalot::apps::bench {
namespace {

constexpr double kCoefficient = 0.9;
constexpr std::uint64_t kPageTokens = 16;

struct Model {
  const char* name;
  std::uint64_t layers, layer_bytes;  // of a token
  std::uint64_t parts;                // that lie apart: keys and values
};
constexpr std::array kModels = {
    Model{"DeepSeek-V3", 61, (512 + 64) * 2, 1},
    Model{"Qwen3-32B", 64, 2 * 8 * 128 * 2, 2},
};

// Few long requests, and as many tokens in many short ones.
struct Load {
  std::uint64_t requests, tokens;
  std::string name() const {
    return (requests == 1 ? "" : std::to_string(requests) + "x") + std::to_string(tokens);
  }
};
constexpr std::array kLoads = {Load{1, 256}, Load{1, 1024}, Load{8, 128}, Load{64, 16}};

}  // namespace

Status bench_transfer_formula(const Settings& settings, Report& report) {
  CACHALOT_TRY_ASSIGN(const PairMemory memory,
                      PairMemory::make(settings.quick ? 128u << 20 : 512u << 20));
  for (const Route route : {Route::kTcp, Route::kShared}) {
    CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> pair, EnginePair::open(route, memory));
    for (const Model& model : kModels) {
      for (const Load& of : kLoads) {
        if (settings.quick && of.requests * of.tokens > 256) continue;
        const std::uint64_t request_bytes = of.tokens * model.layers * model.layer_bytes;
        const std::uint64_t bytes = of.requests * request_bytes;
        const PushLoad link{.bytes = 1u << 20, .transfers = bytes >> 20, .walks = true};
        const PushLoad pages{.bytes = request_bytes,
                             .piece_bytes = kPageTokens * model.layer_bytes / model.parts,
                             .transfers = of.requests,
                             .walks = true};
        std::vector<double> measured_ms, formula_ms;
        for (std::uint32_t turn = 0; turn < settings.repeats + 1; ++turn) {
          show_progress(std::string("transfer formula ") + model.name);
          CACHALOT_TRY_ASSIGN(const double rate, pair->rate(link));
          CACHALOT_TRY_ASSIGN(const double seconds, pair->push(pages));
          if (turn == 0) continue;
          measured_ms.push_back(seconds * 1e3);
          formula_ms.push_back(static_cast<double>(bytes) / (rate * kCoefficient) * 1e3);
        }
        const Spread spread = spread_of(measured_ms);
        Row row{
            (route == Route::kTcp ? "tcp/" : "shm/") + std::string(model.name) + "/" + of.name(),
            spread.median, "ms", "formula", median_of(formula_ms)};
        add_spread(row, spread);
        row.extras.emplace_back("bytes", static_cast<double>(bytes));
        report.add(std::move(row));
      }
    }
  }
  report.note(
      "The last part of a name: tokens, in pages of 16 that lie apart; 8x128: 8 requests of 128 "
      "tokens. Formula: bytes / (0.9 x link); link: as many bytes in transfers of 1 MiB, 32 "
      "outstanding, in the same turn.");
  return {};
}

}  // namespace cachalot::apps::bench

#include "gather.h"

#include <algorithm>
#include <array>

#include "fragments.h"

namespace cachalot::apps::bench {
namespace {

using memory::DomainKind;

constexpr std::uint64_t kOwnBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kPoolBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kTurnBytes = std::uint64_t{8} << 20;
constexpr std::uint32_t kTurnsPerRepeat = 4;

// The ways of moving a block: the plain copies of Copy, then ours.
constexpr std::uint32_t kPlain = kCopies, kChecksum = kCopies + 1, kWays = kCopies + 2;

struct Rates {
  Spread ours, hashed;
  double best = 0;
  const char* best_name = "";
};

class GatherBench {
 public:
  GatherBench(const Settings& settings, Report& report, bool gathers)
      : settings_(settings), report_(report), gathers_(gathers) {}

  // Measures a model in a domain, and adds its row.
  Result<Rates> run(DomainKind kind, const Model& model) {
    show_progress((gathers_ ? "gather: " : "scatter: ") + model.name + suffix(kind));
    CACHALOT_TRY_ASSIGN(PagedBench paged, PagedBench::make(model, kOwnBytes, kPoolBytes));
    const std::unique_ptr<memory::Domain> domain = make_domain(kind);
    CACHALOT_TRY_ASSIGN(kv::CpuEngine engine,
                        kv::CpuEngine::make(paged.cache(), kv::default_block_order(), *domain));
    std::array<std::vector<double>, kWays> gb_s;
    const std::uint64_t blocks = std::max<std::uint64_t>(kTurnBytes / paged.block_bytes(), 1);
    for (std::uint32_t i = 0; i < settings_.repeats * kTurnsPerRepeat; ++i) {
      for (std::uint32_t k = 0; k < kWays; ++k) {
        const std::uint32_t way = (i + k) % kWays;  // none always comes after the same other
        std::uint64_t ns = 0;
        for (std::uint64_t n = 0; n < blocks; ++n) {
          CACHALOT_TRY_ASSIGN(const std::uint64_t one, move(way, kind, paged, engine));
          ns += one;
        }
        gb_s[way].push_back(static_cast<double>(blocks * paged.block_bytes()) /
                            static_cast<double>(ns));
      }
    }
    const Rates rates = rates_of(gb_s);
    add(model.name + suffix(kind), paged.block_bytes(), rates);
    return rates;
  }

  // Small blocks beside large ones: what ours loses, and what the best copy loses.
  void add_small(const std::string& name, const Rates& small, const Rates& large) {
    if (large.best == 0 || large.ours.median == 0) return;
    report_.add({"small/" + name, small.ours.median / large.ours.median, "of 256 tokens",
                 "the best copy", small.best / large.best, ratio_at_least(0.9)});
  }

 private:
  Result<std::uint64_t> move(std::uint32_t way, DomainKind kind, PagedBench& paged,
                             kv::CpuEngine& engine) {
    kv::BlockCopy block = paged.next();
    if (way < kCopies) {
      const std::vector<PagedBench::Piece>& pieces = paged.pieces();
      const std::uint64_t start = now_ns();
      (gathers_ ? copy_pieces_in : copy_pieces_out)(static_cast<Copy>(way), kind, pieces);
      return now_ns() - start;
    }
    memory::FusedHash hash(paged.block_bytes());
    if (way == kChecksum) block.hash = &hash;
    const std::uint64_t start = now_ns();
    CACHALOT_TRY(gathers_ ? engine.gather({&block, 1}) : engine.scatter({&block, 1}));
    if (way == kChecksum) sum_ += hash.finish();
    return now_ns() - start;
  }

  static Rates rates_of(const std::array<std::vector<double>, kWays>& gb_s) {
    Rates rates{spread_of(gb_s[kPlain]), spread_of(gb_s[kChecksum])};
    for (std::uint32_t way = 0; way < kCopies; ++way) {
      const double median = median_of(gb_s[way]);
      if (median <= rates.best) continue;
      rates.best = median;
      rates.best_name = copy_name(static_cast<Copy>(way));
    }
    return rates;
  }

  void add(const std::string& where, std::uint64_t block_bytes, const Rates& rates) {
    Row row{where,           rates.ours.median, "GB/s",
            rates.best_name, rates.best,        ratio_at_least(gathers_ ? 0.9 : 0.85)};
    add_spread(row, rates.ours);
    row.extras.emplace_back("block_us",
                            static_cast<double>(block_bytes) * 1e-3 / rates.ours.median);
    report_.add(std::move(row));
    Row hashed{"checksum/" + where, rates.hashed.median, "GB/s", "without", rates.ours.median};
    add_spread(hashed, rates.hashed);
    report_.add(std::move(hashed));
  }

  const Settings& settings_;
  Report& report_;
  bool gathers_;
  std::uint64_t sum_ = 0;
};

Status bench_paged(const Settings& settings, Report& report, bool gathers) {
  take_cores();
  GatherBench bench(settings, report, gathers);
  for (const DomainKind domain : settings.domains) {
    for (const char* const preset : {"Qwen3-32B", "Llama-3-8B", "DeepSeek-V3"}) {
      CACHALOT_TRY_ASSIGN(const Rates small, bench.run(domain, model_of(preset, 16)));
      CACHALOT_TRY_ASSIGN(const Rates large, bench.run(domain, model_of(preset, 256)));
      bench.add_small(preset + suffix(domain), small, large);
    }
    CACHALOT_TRY(bench.run(domain, synthetic_model()));
    // A rank of eight: 4 KiB fragments.
    if (!settings.quick) CACHALOT_TRY(bench.run(domain, model_of("Qwen3-32B", 16, 8)));
  }
  report.note("plain copies: a fragment at a time, one flush of the block where a domain needs it");
  return {};
}

}  // namespace

Status bench_gather(const Settings& settings, Report& report) {
  return bench_paged(settings, report, true);
}

Status bench_scatter(const Settings& settings, Report& report) {
  return bench_paged(settings, report, false);
}

}  // namespace cachalot::apps::bench

#include "sparse.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "fragments.h"

namespace cachalot::apps::bench {
namespace {

using kv::TokenRange;
using memory::DomainKind;

constexpr std::uint64_t kOwnBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kPoolBytes = std::uint64_t{256} << 20;

Row time_row(const std::string& name, std::vector<double> ns, const char* baseline,
             double baseline_ns, Target target) {
  const Spread spread = spread_of(std::move(ns));
  Row row{name, spread.median * 1e-3, "us", baseline, baseline_ns * 1e-3, target};
  add_spread(row, {spread.median * 1e-3, spread.low * 1e-3, spread.high * 1e-3});
  return row;
}

// --- sparse: 8 of 128 tokens in 64 layers, K and V: 1,024 rows of 160 bytes

Model sparse_model() {
  geometry::KvGeometry g;
  g.layers = 64;
  g.kv_heads = 1;
  g.head_dim = 80;
  g.block_tokens = 128;
  return {"1024x160B", g, "vllm_kbnhc"};
}

// Eight tokens of the block, no two of them neighbours.
std::array<TokenRange, 8> some_tokens(base::Rng& rng) {
  std::array<TokenRange, 8> out;
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    const auto first = i * 16 + static_cast<std::uint32_t>(rng.below(15));
    out[i] = {first, first + 1};
  }
  return out;
}

// The rows of the chosen tokens, as plain copies move them.
std::vector<PagedBench::Piece> rows_of(const std::vector<PagedBench::Piece>& pieces,
                                       std::span<const TokenRange> tokens,
                                       std::uint64_t row_bytes) {
  std::vector<PagedBench::Piece> rows;
  for (const PagedBench::Piece& piece : pieces) {
    for (const TokenRange& range : tokens) {
      const std::uint64_t at = range.first * row_bytes;
      rows.push_back({piece.own + at, piece.pool + at, row_bytes});
    }
  }
  return rows;
}

Status run_sparse(const Settings& settings, Report& report, DomainKind kind) {
  CACHALOT_TRY_ASSIGN(PagedBench paged, PagedBench::make(sparse_model(), kOwnBytes, kPoolBytes));
  const std::unique_ptr<memory::Domain> domain = make_domain(kind);
  CACHALOT_TRY_ASSIGN(kv::CpuEngine engine,
                      kv::CpuEngine::make(paged.cache(), kv::default_block_order(), *domain));
  std::array<std::vector<double>, kCopies + 1> ns;
  base::Rng rng(2);
  for (std::uint32_t i = 0; i < settings.repeats * 20; ++i) {
    for (std::uint32_t k = 0; k <= kCopies; ++k) {
      const std::uint32_t way = (i + k) % (kCopies + 1);
      // Small rows non-temporally would leave lines half written; memcpy and rep movsb remain.
      if (way == static_cast<std::uint32_t>(Copy::kNonTemporal)) continue;
      const std::array<TokenRange, 8> tokens = some_tokens(rng);
      kv::BlockCopy block = paged.next();
      block.tokens = tokens;
      const std::vector<PagedBench::Piece> rows = rows_of(paged.pieces(), tokens, 160);
      const std::uint64_t start = now_ns();
      if (way < kCopies) {
        copy_pieces_out(static_cast<Copy>(way), kind, rows);
      } else {
        CACHALOT_TRY(engine.scatter({&block, 1}));
      }
      ns[way].push_back(static_cast<double>(now_ns() - start));
    }
  }
  const double memcpy_ns = median_of(ns[static_cast<std::uint32_t>(Copy::kMemcpy)]);
  const double movsb_ns = median_of(ns[static_cast<std::uint32_t>(Copy::kRepMovsb)]);
  report.add(time_row("1024x160B" + suffix(kind), ns[kCopies],
                      memcpy_ns <= movsb_ns ? "memcpy" : "rep movsb", std::min(memcpy_ns, movsb_ns),
                      ratio_at_most(1 / 0.85)));
  return {};
}

// --- tokens of heads: a prompt of 1,024 tokens, of which each head of each layer reads some

constexpr std::uint32_t kPromptTokens = 1024;

enum class HeadChoice { kEachItsOwn, kAllTheSame };

struct HeadCase {
  const char* name;
  std::uint32_t tokens;
  HeadChoice choice;
  kv::TokenPlace place;
};
constexpr HeadCase kHeadCases[] = {
    {"16", 16, HeadChoice::kEachItsOwn, kv::TokenPlace::kOwn},
    {"16/packed", 16, HeadChoice::kEachItsOwn, kv::TokenPlace::kPacked},
    {"16/heads_alike", 16, HeadChoice::kAllTheSame, kv::TokenPlace::kOwn},
    {"128", 128, HeadChoice::kEachItsOwn, kv::TokenPlace::kOwn},
    {"256", 256, HeadChoice::kEachItsOwn, kv::TokenPlace::kOwn},
};

// Ascending tokens of the prompt for each layer and head, anew for each call.
class ChosenTokens {
 public:
  ChosenTokens(const geometry::KvGeometry& g, const HeadCase& of, base::Rng& rng) {
    std::vector<std::uint32_t> all(kPromptTokens);
    std::iota(all.begin(), all.end(), 0u);
    for (std::uint32_t i = 0; i < g.layers * g.heads(); ++i) {
      if (of.choice == HeadChoice::kAllTheSame && i % g.heads() != 0) {
        lists_.push_back(lists_.back());
        continue;
      }
      for (std::uint32_t k = 0; k < of.tokens; ++k)
        std::swap(all[k], all[k + rng.below(kPromptTokens - k)]);
      lists_.emplace_back(all.begin(), all.begin() + of.tokens);
      std::sort(lists_.back().begin(), lists_.back().end());
    }
    spans_.assign(lists_.begin(), lists_.end());
  }
  const std::vector<std::span<const std::uint32_t>>& spans() const { return spans_; }

 private:
  std::vector<std::vector<std::uint32_t>> lists_;
  std::vector<std::span<const std::uint32_t>> spans_;
};

// A prompt's blocks in random places of the pool, for random pages.
class Prompt {
 public:
  Prompt(const PagedBench& paged, base::Rng& rng) {
    std::vector<std::uint32_t> places(paged.places());
    std::iota(places.begin(), places.end(), 0u);
    pages_.resize(paged.cache().pages());
    std::iota(pages_.begin(), pages_.end(), 0u);
    const std::uint32_t blocks = kPromptTokens / paged.cache().geometry().block_tokens;
    for (std::vector<std::uint32_t>* const order : {&places, &pages_}) {
      for (std::uint32_t i = 0; i < blocks; ++i)
        std::swap((*order)[i], (*order)[i + rng.below(order->size() - i)]);
      order->resize(blocks);
    }
    for (const std::uint32_t place : places) extents_.push_back(paged.place(place));
    for (std::uint32_t i = 0; i < blocks; ++i) {
      copies_.push_back({{&extents_[i], 1}, {&pages_[i], 1}});
      rows_.push_back({{&extents_[i], 1}, i});
    }
  }
  const std::vector<std::uint32_t>& pages() const { return pages_; }
  const std::vector<kv::BlockCopy>& copies() const { return copies_; }
  const std::vector<kv::RowBlock>& rows() const { return rows_; }

 private:
  std::vector<std::uint32_t> pages_;
  std::vector<memory::Extent> extents_;
  std::vector<kv::BlockCopy> copies_;
  std::vector<kv::RowBlock> rows_;
};

// The rows of a plan, as plain copies move them.
std::vector<PagedBench::Piece> pieces_of(const kv::RowPlan& plan, const kv::EngineCache& cache,
                                         const std::vector<kv::RowBlock>& blocks) {
  std::vector<PagedBench::Piece> pieces;
  kv::RowWalk walk(plan);
  for (const kv::RowBlock& block : blocks) {
    walk.for_each_row(block.number, [&](const kv::Row& row) {
      pieces.push_back({cache.bases()[row.tensor] + row.engine_offset,
                        block.pool[0].at + row.pool_offset, row.bytes});
    });
  }
  return pieces;
}

// Checks and plans the call, too, as each call of a client does.
Status run_head_tokens(const Settings& settings, Report& report, DomainKind kind) {
  const Model model = model_of("Qwen3-32B", 16);
  CACHALOT_TRY_ASSIGN(PagedBench paged, PagedBench::make(model, kOwnBytes, kPoolBytes));
  const std::unique_ptr<memory::Domain> domain = make_domain(kind);
  CACHALOT_TRY_ASSIGN(kv::CpuEngine engine,
                      kv::CpuEngine::make(paged.cache(), kv::default_block_order(), *domain));
  base::Rng rng(3);
  const Prompt prompt(paged, rng);
  constexpr std::size_t kCases = std::size(kHeadCases);
  std::array<std::vector<double>, kCases> ns, plain_ns;
  std::vector<double> whole_ns;
  for (std::uint32_t i = 0; i < settings.repeats; ++i) {
    std::uint64_t start = now_ns();
    CACHALOT_TRY(engine.scatter(prompt.copies()));
    whole_ns.push_back(static_cast<double>(now_ns() - start));
    for (std::size_t k = 0; k < kCases; ++k) {
      const HeadCase& one = kHeadCases[(i + k) % kCases];
      const auto choice_of = [&](const ChosenTokens& chosen) {
        return kv::RowChoice{chosen.spans(), model.geometry.heads(), 0, prompt.pages(),
                             one.place,      prompt.pages().size()};
      };
      const ChosenTokens others(model.geometry, one, rng), chosen(model.geometry, one, rng);
      CACHALOT_TRY_ASSIGN(const kv::RowPlan other,
                          kv::RowPlan::make(paged.cache(), engine.order(), choice_of(others)));
      const std::vector<PagedBench::Piece> pieces = pieces_of(other, paged.cache(), prompt.rows());
      start = now_ns();
      copy_pieces_out(Copy::kMemcpy, kind, pieces);
      plain_ns[(i + k) % kCases].push_back(static_cast<double>(now_ns() - start));
      start = now_ns();
      CACHALOT_TRY_ASSIGN(const kv::RowPlan plan,
                          kv::RowPlan::make(paged.cache(), engine.order(), choice_of(chosen)));
      CACHALOT_TRY(engine.scatter_rows(plan, prompt.rows()));
      ns[(i + k) % kCases].push_back(static_cast<double>(now_ns() - start));
    }
  }
  for (std::size_t k = 0; k < kCases; ++k) {
    const std::string name = std::string("head_tokens/") + kHeadCases[k].name;
    report.add(time_row(name + suffix(kind), ns[k], "whole blocks", median_of(whole_ns), {}));
    report.add(time_row(name + "/copies" + suffix(kind), ns[k], "memcpy of each row",
                        median_of(plain_ns[k]), {}));
  }
  return {};
}

// --- layerwise: as many blocks a call as a short prefix has

struct Blocks {
  std::vector<memory::Extent> extents;
  std::vector<std::uint32_t> pages;
  std::vector<kv::BlockCopy> copies;

  Blocks(PagedBench& paged, std::uint32_t count) : extents(count), pages(count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const kv::BlockCopy block = paged.next();
      extents[i] = block.pool[0];
      pages[i] = block.pages[0];
      copies.push_back({{&extents[i], 1}, {&pages[i], 1}});
    }
  }
};

Status run_layerwise(const Settings& settings, Report& report, DomainKind kind, const Model& model,
                     std::uint32_t count, bool gathers) {
  CACHALOT_TRY_ASSIGN(PagedBench paged, PagedBench::make(model, kOwnBytes, kPoolBytes));
  const std::unique_ptr<memory::Domain> domain = make_domain(kind);
  CACHALOT_TRY_ASSIGN(kv::CpuEngine engine,
                      kv::CpuEngine::make(paged.cache(), kv::default_block_order(), *domain));
  std::array<std::vector<double>, 2> ns;  // whole, by layers
  for (std::uint32_t i = 0; i < settings.repeats * 8; ++i) {
    for (std::uint32_t k = 0; k < 2; ++k) {
      const std::uint32_t by_layers = (i + k) % 2;
      const std::uint32_t steps = by_layers == 0 ? 1 : model.geometry.layers;
      const Blocks blocks(paged, count);
      const std::uint64_t start = now_ns();
      for (std::uint32_t step = 0; step < steps; ++step) {
        const kv::LayerRange layers =
            steps == 1 ? kv::LayerRange{} : kv::LayerRange{step, step + 1};
        CACHALOT_TRY(gathers ? engine.gather(blocks.copies, layers)
                             : engine.scatter(blocks.copies, layers));
      }
      ns[by_layers].push_back(static_cast<double>(now_ns() - start));
    }
  }
  const std::string where =
      (gathers ? "gather/" : "scatter/") + model.name + "/" + std::to_string(count);
  report.add(time_row(where + suffix(kind), ns[1], "all layers at once", median_of(ns[0]), {}));
  return {};
}

}  // namespace

Status bench_sparse(const Settings& settings, Report& report) {
  take_cores();
  for (const DomainKind kind : settings.domains) {
    show_progress("sparse" + suffix(kind));
    CACHALOT_TRY(run_sparse(settings, report, kind));
    CACHALOT_TRY(run_head_tokens(settings, report, kind));
  }
  report.note(
      "1024x160B: 8 of 128 tokens, 64 layers, K and V; plain copies with one flush of all rows' "
      "lines. head_tokens: so many of 1,024 tokens, others for each of 64 layers and 8 heads");
  return {};
}

Status bench_layerwise(const Settings& settings, Report& report) {
  take_cores();
  for (const DomainKind kind : settings.domains) {
    for (const Model& model :
         {model_of("Qwen3-32B", 16), model_of("Qwen3-32B", 256), model_of("DeepSeek-V3", 16)}) {
      show_progress("layerwise: " + model.name + suffix(kind));
      for (const bool gathers : {true, false}) {
        for (const std::uint32_t count : {1u, 4u}) {
          CACHALOT_TRY(run_layerwise(settings, report, kind, model, count, gathers));
        }
      }
    }
  }
  report.note("the last number: blocks a call");
  return {};
}

}  // namespace cachalot::apps::bench

// Rows in pool order, and what a copy of them costs: how many runs a domain is given. That the bytes are right:
// copy_engine_test.cpp, for all engines, layouts and orders.
#include "kv/row_plan.h"

#include <gtest/gtest.h>

#include "kv/fused/host_part.h"
#include "kv/fused/row_blocks.h"
#include "testing/kv/conformance.h"
#include "testing/kv/watched_domain.h"

namespace cachalot::kv {
namespace {

using Lists = std::vector<std::vector<std::uint32_t>>;

// Of 2 layers, 3 heads of 32 bytes, blocks of 8 tokens.
KvGeometry geometry() {
  KvGeometry g;
  g.layers = 2;
  g.kv_heads = 3;
  g.head_dim = 16;
  g.block_tokens = 8;
  return g;
}

// Remembers the lengths of the runs that it is given to read.
class RunDomain final : public memory::Domain {
 public:
  memory::DomainKind kind() const override { return memory::DomainKind::kCoherent; }
  bool writes_whole_lines() const override { return true; }
  void write_lines(void*, const memory::Line*, std::size_t) override {}
  void read_lines(const void*, std::size_t, memory::Line*) override {}
  void gather_lines(const void* const*, std::size_t, memory::Line*) override {}
  void write_bulk(void*, const void*, std::size_t, memory::FusedHash*) override {}
  void read_bulk(void*, const void*, std::size_t, memory::FusedHash*) override {}
  void order() override {}
  void complete() override {}
  void read_prepared(const memory::CopyRun* runs, std::size_t count, memory::FusedHash*) override {
    for (std::size_t i = 0; i < count; ++i) bytes.push_back(runs[i].bytes);
  }
  std::vector<std::size_t> bytes;
};

// The runs of one block between an engine's layout and a block order.
std::vector<std::size_t> runs_of(const char* layout, const char* order_name, const Lists& lists,
                                 TokenPlace place = TokenPlace::kOwn) {
  reference::Cache cache({geometry(), 0, 4, 0}, (*find_layout(layout))->grouped, 1);
  const EngineCache view = *EngineCache::make(cache.shape, layout, cache.views());
  const BlockOrder& order = **find_block_order(order_name);
  const std::vector<std::span<const std::uint32_t>> spans(lists.begin(), lists.end());
  const std::uint32_t page = 2;
  const Result<RowPlan> plan = RowPlan::make(view, order, {spans, 3, 0, {&page, 1}, place, 1});
  EXPECT_TRUE(plan) << plan.error().message;
  std::vector<memory::Line> block(geometry().block_bytes() / memory::kLineBytes);
  const memory::Extent extent{reinterpret_cast<std::byte*>(block.data()), geometry().block_bytes()};
  RunDomain domain;
  const RowBlock row_block{{&extent, 1}, 0};
  EXPECT_TRUE(CpuEngine::make(view, order, domain)->scatter_rows(*plan, {&row_block, 1}));
  return domain.bytes;
}

TEST(RowPlan, HeadsThatChoseTheSameTokenAreOneCopyWhereTheyAreNeighbours) {
  // Layer 0: all heads tokens 2 and 3, heads 1 and 2 also 6. Layer 1: head 0 token 7.
  const Lists lists = {{2, 3}, {2, 3, 6}, {2, 3, 6}, {7}, {}, {}};
  using Runs = std::vector<std::size_t>;
  // Keys: two tokens of three heads, one of two heads. Then values. Then layer 1.
  EXPECT_EQ(runs_of("vllm_kbnhc", "layer_first", lists), (Runs{192, 64, 192, 64, 32, 32}));
  // Head by head: two neighbours each.
  EXPECT_EQ(runs_of("vllm_kbhnc", "layer_first_hnd", lists),
            (Runs{64, 64, 32, 64, 32, 64, 64, 32, 64, 32, 32, 32}));
  // Keys and values together.
  EXPECT_EQ(runs_of("vllm_bnhkc", "layer_first_packed", lists), (Runs{384, 128, 64}));
  // The engine has heads apart, the pool has them together.
  EXPECT_EQ(runs_of("vllm_kbhnc", "layer_first", lists), Runs(18, 32));
  // Packed, the rows of all heads of tokens 2 and 3 still are neighbours on both sides, those of token 6 too.
  EXPECT_EQ(runs_of("vllm_kbnhc", "layer_first", lists, TokenPlace::kPacked),
            (Runs{192, 64, 192, 64, 32, 32}));
}

TEST(RowPlan, NoRowIsMoreThanItsBlockHas) {
  for (const BlockOrder& order : block_orders()) {
    const Lists all(6, {0, 1, 2, 3, 4, 5, 6, 7});
    std::size_t bytes = 0;
    for (const std::size_t run : runs_of("vllm_bknhc", order.name, all)) bytes += run;
    EXPECT_EQ(bytes, geometry().block_bytes()) << order.name;
  }
}

TEST(RowPlan, ABlockThatIsNotInTheChainIsRefused) {
  reference::Cache cache({geometry(), 0, 4, 0}, (*find_layout("vllm_kbnhc"))->grouped, 1);
  const EngineCache view = *EngineCache::make(cache.shape, "vllm_kbnhc", cache.views());
  const Lists lists(6, {0, 15});
  const std::vector<std::span<const std::uint32_t>> spans(lists.begin(), lists.end());
  const std::uint32_t pages[] = {0, 1};
  const RowPlan plan =
      *RowPlan::make(view, default_block_order(), {spans, 3, 0, pages, TokenPlace::kOwn, 2});
  std::vector<memory::Line> lines(geometry().block_bytes() / memory::kLineBytes);
  const memory::Extent extent{reinterpret_cast<std::byte*>(lines.data()), geometry().block_bytes()};
  const memory::Extent too_short{extent.at, extent.bytes - 64};
  const auto refused = [&](std::vector<RowBlock> blocks, const char* words) {
    const Status status = check_row_blocks(plan, blocks);
    ASSERT_FALSE(status) << words;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(status.error().message).find(words), std::string::npos)
        << status.error().message;
  };
  refused({{{&extent, 1}, 2}}, "block 0 is number 2 of the chain, expected 0 to 1");
  refused({{{&extent, 1}, 1}, {{&extent, 1}, 0}},
          "block 1 is number 0 of the chain, expected 2 to");
  refused({{{&too_short, 1}, 0}}, "extents of 3008 bytes, expected at least 3072");
  EXPECT_TRUE(check_row_blocks(plan, std::vector<RowBlock>{{{&extent, 1}, 0}, {{&extent, 1}, 1}}));
}

// --- as a GPU copies them

TEST(RowBlocks, CutRowsOfSeveralLengthsToOne) {
  alignas(64) std::byte pool[256];
  const RowPiece pieces[] = {{{pool, 96}, 1 << 20, 0}, {{pool + 96, 64}, (1 << 20) + 4096, 1}};
  const std::optional<RowBlocks> rows = RowBlocks::make(pieces);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->plan().arithmetic().part[0].run_bytes, 32u);
  EXPECT_EQ(rows->blocks().size(), 3u + 2u);
  EXPECT_EQ(rows->tensors()[0], 1u << 20);
}

TEST(RowBlocks, AreNotMadeOfAddressesThatAreTooFarApart) {
  alignas(64) std::byte pool[64];
  const std::uint64_t far = std::uint64_t{1} << 45;
  const RowPiece aligned[] = {{{pool, 32}, 4096, 0}, {{pool + 32, 32}, (far >> 10), 1}};
  EXPECT_TRUE(RowBlocks::make(aligned));
  const RowPiece pieces[] = {{{pool, 32}, 4096, 0}, {{pool + 32, 32}, far, 1}};
  EXPECT_FALSE(RowBlocks::make(pieces));
}

TEST(HostPart, FlushesEachLineOfRowsOnce) {
  alignas(64) std::byte pool[512];
  const RowPiece pieces[] = {{{pool, 32}, 0, 0},
                             {{pool + 32, 32}, 64, 0},
                             {{pool + 32, 100}, 128, 0},
                             {{pool + 256, 16}, 256, 0}};
  WatchedDomain domain(memory::DomainKind::kNoncoherent);
  HostPart(pieces).before_scatter(domain);
  EXPECT_EQ(domain.flushed, std::vector<std::uint64_t>{64 + 128 + 64});
}

}  // namespace
}  // namespace cachalot::kv

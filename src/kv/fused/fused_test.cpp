// What the kernels do with memory, access by access, for every layout and block order: each byte is
// written once, by any thread, and nothing else is.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/fused/tables.h"
#include "testing/kv/kernels.h"
#include "testing/kv/random_case.h"

namespace cachalot::kv {
namespace {

using emulated::PlainMemory;

// Counts how often each byte was written, and what the pool's accesses were.
struct CountingMemory : PlainMemory {
  std::unordered_map<std::uint64_t, int> writes;
  std::uint64_t wide = 0, narrow = 0;  // accesses of the pool

  void count(std::uint64_t at, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i) ++writes[at + i];
  }
  template <class T>
  T load_pool(std::uint64_t at) {
    ++(sizeof(T) == kUnitBytes ? wide : narrow);
    return PlainMemory::load_pool<T>(at);
  }
  template <class T>
  void store_pool(std::uint64_t at, T value) {
    ++(sizeof(T) == kUnitBytes ? wide : narrow);
    count(at, sizeof(T));
    PlainMemory::store_pool(at, value);
  }
  template <class T>
  void store_engine(std::uint64_t at, T value) {
    count(at, sizeof(T));
    PlainMemory::store_engine(at, value);
  }
  void write(std::uint64_t to, const std::byte* from, std::uint32_t bytes) {
    count(to, bytes);
    PlainMemory::write(to, from, bytes);
  }
};

// Three blocks of 12 tokens in pages of 4, in 3 layers.
struct Fixture {
  static constexpr std::uint32_t kBlocks = 3, kTokens = 12, kPageTokens = 4, kPages = 11;

  static KvGeometry geometry(Attention attention, std::uint32_t content) {
    KvGeometry g;
    g.attention = attention;
    g.layers = 3;
    g.block_tokens = kTokens;
    if (attention == Attention::kGrouped) {
      g.kv_heads = 2;
      g.head_dim = content;
    } else {
      g.kv_lora_rank = content;
      g.qk_rope_head_dim = content / 4;
    }
    return g;
  }

  Fixture(const Layout& layout, Attention attention, std::uint32_t content, const BlockOrder& with)
      : order(with),
        cache({geometry(attention, content), kPageTokens, kPages, 0}, layout.form(attention), 7),
        view(*EngineCache::make(cache.shape, layout.name, cache.views())),
        padded((view.geometry().block_bytes() + 63) / 64 * 64),
        pool(kBlocks * padded / 64 + 1, memory::Line{{9, 9, 9, 9, 9, 9, 9, 9}}) {
    base::Rng rng(content);
    const std::uint32_t each = kTokens / kPageTokens;
    const std::vector<std::uint32_t> all = some_pages(kPages, kBlocks * each, rng);
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      pages.emplace_back(all.begin() + i * each, all.begin() + (i + 1) * each);
      auto* const at = reinterpret_cast<std::byte*>(pool.data()) + i * padded;
      // Two extents, so that a fragment may lie in both.
      const std::uint64_t cut = padded / 128 * 64;
      extents.push_back({{at, cut}, {at + cut, padded - cut}});
      if (cut == 0) extents.back().erase(extents.back().begin());
    }
    for (std::byte* const base : view.bases()) {
      tensors.push_back(reinterpret_cast<std::uintptr_t>(base));
    }
  }

  std::vector<BlockCopy> blocks(const std::vector<TokenRange>& tokens) const {
    std::vector<BlockCopy> out;
    for (std::uint32_t i = 0; i < kBlocks; ++i) out.push_back({extents[i], pages[i], tokens});
    return out;
  }

  const BlockOrder& order;
  reference::Cache cache;
  EngineCache view;
  std::uint64_t padded;
  std::vector<memory::Line> pool;
  std::vector<std::vector<std::uint32_t>> pages;
  std::vector<std::vector<memory::Extent>> extents;
  std::vector<std::uint64_t> tensors;
};

struct Subset {
  LayerRange layers;
  std::vector<TokenRange> tokens;
};

// The fragments of a call as the kernels number them: a chosen token is one of its own.
template <class F>
void for_each_piece(const CopyPlan& plan, const std::vector<BlockCopy>& blocks, F&& f) {
  for (const BlockCopy& block : blocks) {
    std::vector<std::uint32_t> chosen;
    for (const TokenRange& range : block.tokens) {
      for (std::uint32_t token = range.first; token < range.last; ++token) chosen.push_back(token);
    }
    const auto count = static_cast<std::uint32_t>(chosen.size());
    const std::uint32_t* const tokens = chosen.empty() ? nullptr : chosen.data();
    for (std::uint32_t i = 0; i < fragment_count(plan.arithmetic(), count); ++i) {
      f(fragment(plan.arithmetic(), i, tokens, count));
    }
  }
}

// Runs a call, and looks at what was written.
void expect_each_byte_once(Fixture& fixture, const Subset& subset, const WorkShape& shape,
                           Direction direction, bool in_bulk) {
  const std::vector<BlockCopy> blocks = fixture.blocks(subset.tokens);
  const CopyPlan plan =
      *CopyPlan::compile(fixture.view, fixture.order, subset.layers, grain_of(blocks));
  const CallTables tables = *CallTables::make(plan, blocks, fixture.tensors, nullptr, shape);
  const FusedCall told = tables.call_at(reinterpret_cast<std::uintptr_t>(tables.bytes().data()));
  const CallView call(told, told.tables);
  CountingMemory memory;
  if (direction == Direction::kGather) {
    in_bulk ? emulated::launch_bulk<Direction::kGather>(call, 3, memory)
            : emulated::launch_threads<Direction::kGather>(call, 3, 2 * shape.lanes, memory);
  } else {
    in_bulk ? emulated::launch_bulk<Direction::kScatter>(call, 3, memory)
            : emulated::launch_threads<Direction::kScatter>(call, 3, 2 * shape.lanes, memory);
  }
  std::uint64_t expected = 0, padding = 0;
  const std::uint32_t last = subset.layers.last == 0 ? 3 : subset.layers.last;
  for (std::uint32_t i = 0; i < Fixture::kBlocks; ++i) {
    bool has_last_byte = false;
    reference::for_each_byte(
        fixture.cache, fixture.order, fixture.pages[i], subset.layers.first, last,
        chosen_of(subset.tokens, Fixture::kTokens), [&](std::byte& byte, std::uint64_t offset) {
          const auto base = reinterpret_cast<std::uintptr_t>(fixture.pool.data());
          const std::uint64_t in_pool = base + i * fixture.padded + offset;
          const std::uint64_t to =
              direction == Direction::kGather ? in_pool : reinterpret_cast<std::uintptr_t>(&byte);
          ++expected;
          has_last_byte |= offset + 1 == plan.block_bytes();
          const auto found = memory.writes.find(to);
          ASSERT_NE(found, memory.writes.end()) << "offset " << offset << " was not written";
          ASSERT_EQ(found->second, 1) << "offset " << offset;
        });
    if (has_last_byte) padding += fixture.padded - plan.block_bytes();
  }
  if (direction == Direction::kScatter) padding = 0;
  EXPECT_EQ(memory.writes.size(), expected + padding);
  // The pool is far away: a fragment's whole units are one access each, however the engine's side is
  // aligned and whatever an item's size.
  if (in_bulk) return;
  std::uint64_t whole_units = 0;
  for_each_piece(plan, blocks, [&](const Fragment& piece) {
    const std::uint64_t first = (piece.pool_offset + kUnitBytes - 1) / kUnitBytes;
    const std::uint64_t end = (piece.pool_offset + piece.bytes) / kUnitBytes;
    whole_units += end > first ? end - first : 0;
  });
  EXPECT_EQ(memory.wide, whole_units);
}

TEST(FusedCopy, WritesEachByteOnceInEveryLayoutAndOrder) {
  const Subset subsets[] = {{{}, {}}, {{1, 2}, {}}, {{0, 2}, {{0, 1}, {3, 7}, {11, 12}}}};
  const WorkShape shapes[] = {{1, 16}, {3, 48}, {32, 2048}};
  int runs = 0, bulk_runs = 0;
  for (const Layout& layout : layouts()) {
    for (const Attention attention : {Attention::kGrouped, Attention::kLatent}) {
      if (layout.form(attention).order == nullptr) continue;
      for (const BlockOrder& order : block_orders()) {
        for (const std::uint32_t content : {32u, 20u, 5u}) {  // 64, 40 and 10 bytes
          Fixture fixture(layout, attention, content, order);
          for (const Subset& subset : subsets) {
            SCOPED_TRACE(std::string(layout.name) + ", " + order.name + ", content " +
                         std::to_string(content) + ", layers from " +
                         std::to_string(subset.layers.first));
            const WorkShape& shape = shapes[runs % 3];
            expect_each_byte_once(fixture, subset, shape, Direction::kGather, false);
            expect_each_byte_once(fixture, subset, shape, Direction::kScatter, false);
            ++runs;
            const CopyPlan plan = *CopyPlan::compile(fixture.view, order, subset.layers,
                                                     grain_of(fixture.blocks(subset.tokens)));
            if (pool_alignment(plan.arithmetic()) < kUnitBytes ||
                engine_alignment(plan.arithmetic(), fixture.tensors) < kUnitBytes) {
              continue;
            }
            expect_each_byte_once(fixture, subset, {1, 48}, Direction::kGather, true);
            expect_each_byte_once(fixture, subset, {1, 48}, Direction::kScatter, true);
            ++bulk_runs;
          }
        }
      }
    }
  }
  EXPECT_GT(runs, 300);
  EXPECT_GT(bulk_runs, 50);
}

// The engine's side begins at every address that a dtype allows: other bytes of a unit each time.
TEST(FusedCopy, CopiesPagesOfAnyAlignment) {
  constexpr std::uint64_t kBytes = 200;  // of a block that is one fragment
  for (std::uint64_t skew = 0; skew < 16; ++skew) {
    alignas(64) std::byte pages[256] = {};
    for (std::size_t i = 0; i < sizeof pages; ++i) pages[i] = static_cast<std::byte>(i);
    alignas(64) std::byte pool[256];
    std::memset(pool, 0x77, sizeof pool);
    KvGeometry g;
    g.dtype = geometry::DType::kF8;
    g.layers = 1;
    g.kv_heads = 1;
    g.head_dim = kBytes / 2;
    g.block_tokens = 1;
    const Tensor tensor{pages + skew, kBytes};
    const EngineCache cache = *EngineCache::make({g, 0, 1, 0}, "vllm_bknhc", {&tensor, 1});
    const memory::Extent extent{pool, sizeof pool};
    const std::uint32_t page = 0;
    const BlockCopy block{{&extent, 1}, {&page, 1}};
    const CopyPlan plan = *CopyPlan::compile(cache, default_block_order());
    ASSERT_EQ(plan.fragments(), 1u);
    const std::uint64_t base = reinterpret_cast<std::uintptr_t>(tensor.at);
    const CallTables tables = *CallTables::make(plan, {&block, 1}, {&base, 1}, nullptr, {4, 64});
    const FusedCall told = tables.call_at(reinterpret_cast<std::uintptr_t>(tables.bytes().data()));
    const CallView call(told, told.tables);
    PlainMemory memory;
    emulated::launch_threads<Direction::kGather>(call, 2, 8, memory);
    EXPECT_EQ(std::memcmp(pool, tensor.at, kBytes), 0) << skew;
    for (std::uint64_t i = kBytes; i < 256; ++i) EXPECT_EQ(pool[i], std::byte{0});
    std::byte back[256] = {};
    std::memcpy(back, pages, sizeof back);
    std::memset(pages, 0x33, sizeof pages);
    emulated::launch_threads<Direction::kScatter>(call, 2, 8, memory);
    for (std::size_t i = 0; i < sizeof pages; ++i) {
      const bool is_inside = i >= skew && i < skew + kBytes;
      EXPECT_EQ(pages[i], is_inside ? back[i] : std::byte{0x33}) << skew << " " << i;
    }
  }
}

TEST(FusedCopy, DividesWorkAsTheFragmentsAsk) {
  Plan plan;
  plan.parts = 2;
  const auto shape = [&](std::uint64_t a, std::uint64_t b) {
    plan.part[0].run_bytes = a;
    plan.part[1].run_bytes = b;
    const WorkShape found = shape_for(plan, 32);
    return std::pair(found.lanes, found.item_bytes);
  };
  EXPECT_EQ(shape(32 << 10, 32 << 10), std::pair(32u, 2048u));
  EXPECT_EQ(shape(160, 160), std::pair(8u, 512u));
  EXPECT_EQ(shape(1024, 128), std::pair(32u, 2048u));
  EXPECT_EQ(shape(16, 10), std::pair(1u, 64u));
}

TEST(PoolMap, FindsWhatLiesInOneRangeOnly) {
  PoolMap map;
  auto* const base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 32);
  ASSERT_TRUE(map.add(base, 4096, 1 << 20));
  ASSERT_TRUE(map.add(base + 4096, 4096, 5 << 20));
  EXPECT_FALSE(map.add(base + 64, 64, 0));
  EXPECT_FALSE(map.add(base - 64, 128, 0));
  EXPECT_EQ(*map.find({base, 4096}), std::uint64_t{1} << 20);
  EXPECT_EQ(*map.find({base + 4096 + 64, 64}), (std::uint64_t{5} << 20) + 64);
  EXPECT_FALSE(map.find({base + 4032, 128}));  // over two ranges: other addresses of the device's
  const PoolPart part = *map.find_part({base + 4032, 128});
  EXPECT_EQ(part.at, (std::uint64_t{1} << 20) + 4032);
  EXPECT_EQ(part.bytes, 64u);
  EXPECT_FALSE(map.find_part({base + 8192, 64}));
  EXPECT_FALSE(map.find({base - 64, 64}));
  EXPECT_FALSE(map.find({base + 8192, 64}));
  EXPECT_FALSE(map.find({base + 64, ~std::uint64_t{0}}));
  EXPECT_TRUE(map.remove(base));
  EXPECT_FALSE(map.remove(base));
  EXPECT_FALSE(map.find({base, 64}));
}

}  // namespace
}  // namespace cachalot::kv

// What only the CPU's engine has: stripes of real devices, threads, and caches that are not
// coherent.
#include "kv/cpu/cpu_engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "memory/devices.h"
#include "testing/kv/conformance.h"

namespace cachalot::kv {
namespace {

KvGeometry geometry_of(std::uint32_t layers, std::uint32_t heads, std::uint32_t tokens) {
  KvGeometry g;
  g.layers = layers;
  g.kv_heads = heads;
  g.head_dim = 128;
  g.block_tokens = tokens;
  return g;
}

struct Paged {
  Paged(const KvGeometry& g, std::uint32_t pages, std::uint64_t seed)
      : cache({g, 0, pages, 0}, (*find_layout("vllm_kbnhc"))->grouped, seed),
        view(*EngineCache::make(cache.shape, "vllm_kbnhc", cache.views())) {}
  reference::Cache cache;
  EngineCache view;
};

// A page as the block it makes up, by the reference.
std::vector<std::byte> block_of(reference::Cache& cache, std::uint32_t page) {
  const KvGeometry& g = cache.shape.geometry;
  std::vector<std::byte> flat(g.block_bytes());
  reference::for_each_byte(cache, default_block_order(), {page}, 0, g.layers,
                           std::vector<bool>(g.block_tokens, true),
                           [&](std::byte& byte, std::uint64_t at) { flat[at] = byte; });
  return flat;
}
bool holds(reference::Cache& cache, std::uint32_t page, const std::vector<std::byte>& block) {
  return block_of(cache, page) == block;
}

TEST(CpuEngine, NeedsAThread) {
  Paged paged(geometry_of(1, 1, 1), 1, 1);
  const auto domain = memory::make_coherent_domain();
  EXPECT_FALSE(CpuEngine::make(paged.view, default_block_order(), *domain, {0}));
}

// 5 MB blocks over three devices of 2 MiB stripes, as many blocks a call as there are.
TEST(CpuEngine, CopiesBlocksThatLieOverTheStripesOfSeveralDevices) {
  const KvGeometry g = geometry_of(20, 8, 61);
  const std::uint64_t bytes = g.block_bytes();
  ASSERT_EQ(bytes % 64, 0u);
  Result<memory::DeviceSet> devices =
      memory::DeviceSet::create({"memfd:a", "memfd:b", "memfd:c"}, 8 << 20);
  ASSERT_TRUE(devices) << devices.error().message;
  const memory::Interleave interleave = *memory::Interleave::make({0, 0, 0}, 8 << 20);
  std::vector<std::vector<memory::Extent>> extents(4);
  for (std::uint64_t i = 0; i < extents.size(); ++i) {
    interleave.for_each_extent(
        i * bytes, bytes, [&](std::uint32_t device, std::uint64_t offset, std::uint64_t length) {
          extents[i].push_back({devices->base(device) + offset, length});
        });
  }
  for (const bool coherent : {true, false}) {
    const auto domain =
        coherent ? memory::make_coherent_domain() : memory::make_noncoherent_domain();
    Paged from(g, 6, 1), to(g, 5, 2);
    std::vector<std::uint32_t> source = {3, 0, 5, 1}, target = {4, 2, 0, 3};
    std::vector<memory::FusedHash> in(4, memory::FusedHash(bytes)), out = in;
    std::vector<BlockCopy> gathered, scattered;
    for (std::size_t i = 0; i < 4; ++i) {
      gathered.push_back({extents[i], {&source[i], 1}, {}, &in[i]});
      scattered.push_back({extents[i], {&target[i], 1}, {}, &out[i]});
    }
    Result<CpuEngine> writer = CpuEngine::make(from.view, default_block_order(), *domain, {2});
    Result<CpuEngine> reader = CpuEngine::make(to.view, default_block_order(), *domain, {3});
    ASSERT_TRUE(writer->gather(gathered));
    ASSERT_TRUE(reader->scatter(scattered));
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(in[i].finish(), out[i].finish());
      const std::vector<std::byte> flat = block_of(from.cache, source[i]);
      EXPECT_EQ(in[i].finish(), memory::hash_lines(flat.data(), bytes));
      EXPECT_TRUE(holds(to.cache, target[i], flat));
    }
  }
}

// Another host writes the same pool block again and again; every scatter brings the newest bytes,
// whatever an earlier one, a prefetch or an eviction left in the cache.
TEST(CpuEngine, ReadsWhatIsInThePoolAndNotWhatItReadBefore) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    World world(memory::DomainKind::kLossy, memory::Isa::kAuto, seed);
    const KvGeometry g = geometry_of(2, 1, 4);
    Paged from(g, 3, seed), to(g, 3, seed + 100);
    Result<CpuEngine> writer = CpuEngine::make(from.view, default_block_order(), world.writer());
    Result<CpuEngine> reader = CpuEngine::make(to.view, default_block_order(), world.reader());
    const auto out = world.extents(true, 0, g.block_bytes(), 512);
    const auto in = world.extents(false, 0, g.block_bytes(), 512);
    base::Rng rng(seed);
    for (int round = 0; round < 20; ++round) {
      for (auto& tensor : from.cache.memory) {
        for (std::uint64_t& word : tensor) word = rng.next();
      }
      const std::uint32_t page = round % 3;
      const BlockCopy write{out, {&page, 1}}, read{in, {&page, 1}};
      ASSERT_TRUE(writer->gather({&write, 1}));
      world.writer().complete();
      if (round % 2 == 0) {
        ASSERT_TRUE(reader->scatter({&read, 1}));
      } else {
        for (std::uint32_t l = 0; l < 2; ++l) ASSERT_TRUE(reader->scatter({&read, 1}, {l, l + 1}));
      }
      EXPECT_TRUE(holds(to.cache, page, block_of(from.cache, page)));
    }
  }
}

// One buffer with all layers of a page together, once as what it is, once as a tensor a layer with
// gaps between its pages: the same blocks.
TEST(CpuEngine, ATensorOfEachLayerMayHaveGapsBetweenItsPages) {
  const KvGeometry g = geometry_of(3, 2, 4);
  const CacheShape shape{g, 0, 5, 0};
  reference::Cache buffer(shape, (*find_layout("vllm_blnhc"))->grouped, 1);
  const std::vector<Tensor> whole = buffer.views();
  std::vector<Tensor> views;
  for (std::uint32_t l = 0; l < g.layers; ++l) {
    views.push_back({whole[0].at + l * g.layer_bytes(), 4 * g.block_bytes() + g.layer_bytes()});
  }
  CacheShape with_gaps = shape;
  with_gaps.page_stride_bytes = g.block_bytes();
  const Result<EngineCache> joint = EngineCache::make(shape, "vllm_blnhc", whole);
  const Result<EngineCache> apart = EngineCache::make(with_gaps, "vllm_bnhkc", views);
  ASSERT_TRUE(joint) << joint.error().message;
  ASSERT_TRUE(apart) << apart.error().message;
  const auto domain = memory::make_coherent_domain();
  std::vector<memory::Line> pool(2 * g.block_bytes() / 64);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const memory::Extent extent{reinterpret_cast<std::byte*>(pool.data()) + i * g.block_bytes(),
                                g.block_bytes()};
    const std::uint32_t page = 3;
    const BlockCopy block{{&extent, 1}, {&page, 1}};
    Result<CpuEngine> engine =
        CpuEngine::make(i == 0 ? *joint : *apart, default_block_order(), *domain);
    ASSERT_TRUE(engine->gather({&block, 1}));
  }
  EXPECT_EQ(std::memcmp(pool.data(), pool.data() + pool.size() / 2, g.block_bytes()), 0);
}

TEST(CpuEngine, IsUsedByManyThreadsAtATime) {
  const KvGeometry g = geometry_of(4, 2, 16);
  Paged paged(g, 8, 3);
  const auto before = paged.cache.memory;
  const auto domain = memory::make_noncoherent_domain();
  Result<CpuEngine> engine = CpuEngine::make(paged.view, default_block_order(), *domain);
  std::vector<memory::Line> pool(8 * g.block_bytes() / 64);
  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const std::uint32_t page = 2 * t + round % 2;
        const memory::Extent extent{
            reinterpret_cast<std::byte*>(pool.data()) + page * g.block_bytes(), g.block_bytes()};
        memory::FusedHash in(g.block_bytes()), out(g.block_bytes());
        BlockCopy block{{&extent, 1}, {&page, 1}, {}, &in};
        const Status gathered = engine->gather({&block, 1});
        block.hash = &out;
        const Status scattered = engine->scatter({&block, 1});
        good[t] += gathered.ok() && scattered.ok() && in.finish() == out.finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, std::vector<int>(4, 50));
  EXPECT_EQ(paged.cache.memory, before);
}

}  // namespace
}  // namespace cachalot::kv

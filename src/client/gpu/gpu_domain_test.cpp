// Whether the host's caches are flushed around GPU copies, by the client's options.
#include <gtest/gtest.h>

#include <numeric>

#include "client/cache_table.h"
#include "testing/client/test_gpu.h"
#include "testing/kv/watched_domain.h"

namespace cachalot::client {
namespace {

using memory::DomainKind;

std::uint64_t flushed_by(const kv::WatchedDomain& domain) {
  return std::accumulate(domain.flushed.begin(), domain.flushed.end(), std::uint64_t{0});
}

// @return bytes flushed by the copies of a store and of a load
std::pair<std::uint64_t, std::uint64_t> flushes_of(DomainKind kind, bool bypasses) {
  GpuMachine machine;
  const KvGeometry geometry = small_geometry();
  kv::WatchedDomain domain(kind);
  std::vector<memory::Line> pool(geometry.block_bytes() / sizeof(memory::Line));
  const memory::Extent extent{reinterpret_cast<std::byte*>(pool.data()), geometry.block_bytes()};
  const memory::PoolView view{{extent.at}, extent.bytes};
  kv::Gpus gpus(view, machine.opener());
  ClientOptions options;
  options.pool_bypasses_caches = bypasses;
  CopyMeans means = CopyMeans::of(options);
  means.gpu = *gpus.find_or_open(0);
  PagedCache description{.layout = "vllm_bknhc", .pages = 2};
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
    description.tensors.push_back(
        {machine.allocate(2 * geometry.layer_bytes()), 2 * geometry.layer_bytes()});
  }
  {
    const auto cache =
        RegisteredCache::make(description, geometry, {}, kv::default_block_order(), domain, means);
    EXPECT_TRUE(cache) << cache.error().message;
    const std::uint32_t page = 1;
    const GroupCopies copies = {{{{&extent, 1}, {&page, 1}}}};
    EXPECT_TRUE((*cache)->gather(copies, {}, nullptr));
    const std::uint64_t by_store = flushed_by(domain);
    domain.flushed.clear();
    EXPECT_TRUE((*cache)->scatter(copies, {}, nullptr));
    for (const Buffer& tensor : description.tensors)
      machine.free(static_cast<std::byte*>(tensor.data));
    return {by_store, flushed_by(domain)};
  }
}

TEST(GpuDomain, ANoncoherentPoolIsFlushedAroundCopiesUnlessItBypassesTheCaches) {
  const std::uint64_t block = small_geometry().block_bytes();
  EXPECT_EQ(flushes_of(DomainKind::kNoncoherent, false), std::pair(block, block));
  EXPECT_EQ(flushes_of(DomainKind::kNoncoherent, true),
            std::pair(std::uint64_t{0}, std::uint64_t{0}));
  EXPECT_EQ(flushes_of(DomainKind::kMixed, false), std::pair(block, block));
  EXPECT_EQ(flushes_of(DomainKind::kCoherent, false),
            std::pair(std::uint64_t{0}, std::uint64_t{0}));
}

}  // namespace
}  // namespace cachalot::client

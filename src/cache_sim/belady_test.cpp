#include "cache_sim/belady.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "cache_sim/cache_model.h"

namespace cachalot::cache_sim {
namespace {

using Path = std::vector<std::uint32_t>;

Belady::Hits optimum(const std::vector<Path>& requests, std::uint64_t capacity) {
  Result<Belady> belady = Belady::make(testing::TempDir());
  EXPECT_TRUE(belady);
  std::uint32_t distinct = 0;
  for (const Path& path : requests) {
    EXPECT_TRUE(belady->add(path, path.size() * 10));
    for (const std::uint32_t block : path) distinct = std::max(distinct, block + 1);
  }
  EXPECT_TRUE(belady->look_ahead(distinct));
  return belady->hits(capacity, 10);
}

TEST(Belady, KeepsWhatIsAskedForFirst) {
  EXPECT_EQ(optimum({{0}, {1}, {2}, {0}, {1}, {2}}, 2).blocks, 2u);
  EXPECT_EQ(optimum({{0}, {1}, {2}, {0}, {1}, {2}}, 3).blocks, 3u);
  EXPECT_EQ(optimum({{0}, {1}, {2}, {0}, {1}, {2}}, 1).blocks, 1u);
}

TEST(Belady, OfNothingIsNothing) {
  EXPECT_EQ(optimum({}, 5).blocks, 0u);
  EXPECT_EQ(optimum({{}, {}}, 5).blocks, 0u);
}

TEST(Belady, CountsTokensUpToTheInputsLength) {
  Result<Belady> belady = Belady::make(testing::TempDir());
  ASSERT_TRUE(belady);
  ASSERT_TRUE(belady->add(Path{0, 1}, 15));
  ASSERT_TRUE(belady->add(Path{0, 1}, 15));
  ASSERT_TRUE(belady->look_ahead(2));
  EXPECT_EQ(belady->hits(2, 10).tokens, 15u);
  EXPECT_EQ(belady->hits(1, 10).tokens, 10u);
  EXPECT_EQ(belady->hits(2, ~std::uint64_t{0}).tokens, 15u);
}

TEST(Belady, ADirectoryThatIsNotThereIsAnError) {
  const Result<Belady> belady = Belady::make("/nonexistent");
  ASSERT_FALSE(belady);
  EXPECT_EQ(belady.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(belady.error().message).find("/nonexistent"), std::string::npos);
}

// Address space without access, so that a missing check ends the test immediately.
TEST(Belady, MoreReferencesThanNumbersAreAnError) {
  constexpr std::size_t kMost = 0xfffffffe;
  void* const nothing = mmap(nullptr, kMost * sizeof(std::uint32_t), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  Result<Belady> belady = Belady::make(testing::TempDir());
  ASSERT_TRUE(belady);
  ASSERT_TRUE(belady->add(Path{0}, 1));
  const Status status = belady->add({static_cast<const std::uint32_t*>(nothing), kMost}, 1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kUnsupported);
  EXPECT_NE(std::string(status.error().message).find("4294967294 references"), std::string::npos)
      << status.error().message;
  EXPECT_EQ(munmap(nothing, kMost * sizeof(std::uint32_t)), 0);
}

// All sets that a cache could hold after each reference: the true optimum, for tiny traces.
std::uint64_t by_search(const std::vector<std::uint32_t>& references, std::size_t capacity) {
  std::map<std::set<std::uint32_t>, std::uint64_t> best = {{{}, 0}};
  for (const std::uint32_t block : references) {
    std::map<std::set<std::uint32_t>, std::uint64_t> after;
    const auto reach = [&](std::set<std::uint32_t> held, std::uint64_t hits) {
      auto& known = after[std::move(held)];
      known = std::max(known, hits);
    };
    for (const auto& [held, hits] : best) {
      if (held.count(block) != 0) {
        reach(held, hits + 1);
        continue;
      }
      reach(held, hits);  // not stored
      auto with = held;
      with.insert(block);
      if (with.size() <= capacity) reach(with, hits);
      for (const std::uint32_t victim : held) {
        auto without = with;
        without.erase(victim);
        reach(without, hits);
      }
    }
    best = std::move(after);
  }
  std::uint64_t most = 0;
  for (const auto& [held, hits] : best) most = std::max(most, hits);
  return most;
}

RC_GTEST_PROP(Belady, IsTheBestOfAllThatACacheCouldDo, ()) {
  const auto capacity = *rc::gen::inRange<std::size_t>(1, 4);
  auto references =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 6));
  if (references.size() > 14) references.resize(14);
  std::vector<Path> requests;
  for (const std::uint32_t block : references) requests.push_back({block});
  RC_ASSERT(optimum(requests, capacity).blocks == by_search(references, capacity));
}

// Paths in a tree of 30 blocks whose parent is always (n - 1) / 2, or none for 0 and 1.
Path path_to(std::uint32_t block) {
  Path path = {block};
  while (path.back() > 1) path.push_back((path.back() - 1) / 2);
  std::reverse(path.begin(), path.end());
  return path;
}

RC_GTEST_PROP(Belady, NoPolicyOfEitherModeIsAboveIt, ()) {
  const auto capacity = *rc::gen::inRange<std::uint64_t>(1, 20);
  const auto blocks =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange<std::uint32_t>(0, 30));
  std::vector<Path> requests;
  for (const std::uint32_t block : blocks) requests.push_back(path_to(block));
  const Belady::Hits best = optimum(requests, capacity);
  RC_ASSERT(best.prefix == best.blocks);  // in a tree it is prefix-closed
  for (const eviction::PolicyKind kind :
       {eviction::PolicyKind::kLru, eviction::PolicyKind::kFifo, eviction::PolicyKind::kLfu,
        eviction::PolicyKind::kLengthAware, eviction::PolicyKind::kHitDensity,
        eviction::PolicyKind::kS3Fifo, eviction::PolicyKind::kArc,
        eviction::PolicyKind::kWTinyLfu}) {
    for (const eviction::CacheMode mode :
         {eviction::CacheMode::kStream, eviction::CacheMode::kLeaf}) {
      if (!eviction::has_mode(kind, mode)) continue;
      const auto cache = make_cache_model({kind, mode, capacity});
      RC_ASSERT(cache.ok());
      std::uint64_t hits = 0;
      for (const Path& path : requests) hits += (*cache)->access(path).blocks;
      RC_ASSERT(hits <= best.blocks);
    }
  }
}

}  // namespace
}  // namespace cachalot::cache_sim

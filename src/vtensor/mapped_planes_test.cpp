#include "vtensor/mapped_planes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "testing/device_memory/faulty_backend.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = device_memory::FaultyBackend::kGranule;

// Two layers of two parts: four planes, of 16 and 32 bytes a token.
class MappedPlanesTest : public testing::Test {
 protected:
  MappedPlanesTest()
      : layout_(*RangeLayout::make({.layers = 2, .part_bytes = {16, 32}}, KvLayout::kPerLayer,
                                   kChunk, 64)) {
    planes_.emplace(backend_, layout_, *backend_.reserve(layout_.range_bytes()));
  }

  PlaneChunks chunks_for(std::uint64_t tokens) {
    PlaneChunks more{.counts = planes_->missing(tokens), .chunks = {}};
    const auto count = std::accumulate(more.counts.begin(), more.counts.end(), std::uint64_t{0});
    EXPECT_TRUE(store_.take(count, more.chunks));
    return more;
  }
  Status grow(std::uint64_t tokens, std::vector<Chunk>& unused) {
    return planes_->append(chunks_for(tokens), device_memory::Access::kReadWrite, unused);
  }

  device_memory::FaultyBackend backend_;
  LocalBudget budget_;
  ChunkStore store_{backend_, budget_, kChunk};
  RangeLayout layout_;
  std::optional<MappedPlanes> planes_;
  std::vector<Chunk> unused_;
};

TEST_F(MappedPlanesTest, MapsWhatTheTokensNeedWithOneAccessAPlane) {
  ASSERT_TRUE(grow(5, unused_));
  EXPECT_EQ(planes_->chunks(), layout_.chunks(5));
  EXPECT_EQ(backend_.counts().map, 2 * (2 + 3u));  // 80 and 160 bytes, in chunks of 64
  EXPECT_EQ(backend_.counts().set_access, 4u);
  EXPECT_EQ(planes_->tokens(), 6u);  // what the third chunk of the wider planes holds
  ASSERT_TRUE(grow(8, unused_));
  EXPECT_EQ(backend_.counts().set_access, 6u);  // the narrower ones had room
}

// Whichever call fails, in whichever plane.
TEST_F(MappedPlanesTest, AnAppendThatFailsLeavesThePlanesAsTheyWere) {
  ASSERT_TRUE(grow(3, unused_));
  const std::uint64_t chunks = planes_->chunks(), mapped = backend_.mapped_bytes();
  const struct {
    const char* call;
    std::uint64_t calls;
  } kCalls[] = {{"map", layout_.chunks(20) - layout_.chunks(3)}, {"set_access", 4}};
  for (const auto& [call, calls] : kCalls) {
    for (std::uint64_t nth = 1; nth <= calls; ++nth) {
      SCOPED_TRACE(std::string(call) + " " + std::to_string(nth));
      backend_.fail(call, nth);
      unused_.clear();
      ASSERT_FALSE(grow(20, unused_));
      backend_.heal();
      EXPECT_EQ(planes_->chunks(), chunks);
      EXPECT_EQ(backend_.mapped_bytes(), mapped);
      EXPECT_FALSE(planes_->is_damaged());
      EXPECT_EQ(unused_.size(), layout_.chunks(20) - chunks);
      EXPECT_EQ(store_.drop(unused_), unused_.size());
    }
  }
  EXPECT_EQ(store_.counts().used, chunks);
  ASSERT_TRUE(grow(20, unused_));
}

TEST_F(MappedPlanesTest, WhatIsNotUnmappedStaysWithThePlanes) {
  backend_.fail("set_access", 3);
  backend_.fail("unmap", 2);
  ASSERT_FALSE(grow(8, unused_));
  EXPECT_TRUE(planes_->is_damaged());
  EXPECT_EQ(planes_->chunks() * kChunk, backend_.mapped_bytes());
  EXPECT_EQ(planes_->chunks() + unused_.size(), layout_.chunks(8));
  store_.drop(unused_);
  EXPECT_EQ(store_.counts().used, planes_->chunks());
  unused_.clear();
  const Status refused = grow(8, unused_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInternal);
  store_.drop(unused_);

  backend_.heal();
  std::vector<Chunk> freed;
  ASSERT_TRUE(planes_->truncate(0, freed));
  store_.drop(freed);
  EXPECT_EQ(store_.counts().used, 0u);
  EXPECT_TRUE(grow(8, unused_));
}

// What stays mapped may have any access: no token lies in it.
TEST_F(MappedPlanesTest, WhatIsNotUnmappedHoldsNoTokens) {
  ASSERT_TRUE(grow(3, unused_));
  const std::uint64_t tokens = planes_->tokens();
  backend_.fail("set_access", 4);
  backend_.fail("unmap", 1, 9);
  ASSERT_FALSE(grow(20, unused_));
  EXPECT_EQ(planes_->chunks(), layout_.chunks(20));
  EXPECT_EQ(planes_->tokens(), tokens);
  std::vector<Chunk> freed;
  ASSERT_FALSE(planes_->truncate(0, freed));
  EXPECT_EQ(planes_->tokens(), 0u);
  backend_.heal();
  ASSERT_TRUE(planes_->truncate(0, freed));
  ASSERT_TRUE(grow(20, unused_));
  EXPECT_GE(planes_->tokens(), 20u);
}

TEST_F(MappedPlanesTest, TruncatesToWhatTheTokensNeed) {
  ASSERT_TRUE(grow(40, unused_));
  std::vector<Chunk> freed;
  ASSERT_TRUE(planes_->truncate(7, freed));
  EXPECT_EQ(planes_->chunks(), layout_.chunks(7));
  EXPECT_EQ(freed.size(), layout_.chunks(40) - layout_.chunks(7));
  EXPECT_EQ(backend_.counts().unmap, 4u);
}

TEST_F(MappedPlanesTest, ProtectsFullChunksOnly) {
  ASSERT_TRUE(grow(11, unused_));
  ASSERT_TRUE(planes_->protect(11));
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    EXPECT_EQ(planes_->read_only(p), layout_.full_chunks(p, 11));
  }
  const std::uint64_t calls = backend_.counts().set_access;
  ASSERT_TRUE(planes_->protect(11));
  EXPECT_EQ(backend_.counts().set_access, calls);
  std::vector<Chunk> freed;
  ASSERT_TRUE(planes_->truncate(0, freed));
  EXPECT_FALSE(planes_->has_read_only());
}

TEST_F(MappedPlanesTest, AProtectionThatFailsIsTakenBackInAllPlanes) {
  ASSERT_TRUE(grow(16, unused_));
  ASSERT_TRUE(planes_->protect(4));
  backend_.fail("set_access", 3);
  const std::uint64_t calls = backend_.counts().set_access;
  ASSERT_FALSE(planes_->protect(16));
  EXPECT_FALSE(planes_->is_damaged());
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    EXPECT_EQ(planes_->read_only(p), layout_.full_chunks(p, 4));
  }
  EXPECT_EQ(backend_.counts().set_access, calls + 2 + 3);
  EXPECT_EQ(planes_->tokens(), 16u);
  backend_.fail("set_access", 1, 1);  // also the call that takes it back
  ASSERT_FALSE(planes_->protect(16));
  EXPECT_TRUE(planes_->is_damaged());
  EXPECT_EQ(planes_->tokens(), 4u);  // the access of later tokens is unknown
}

TEST_F(MappedPlanesTest, AProtectionCanBeTakenBack) {
  ASSERT_TRUE(grow(16, unused_));
  ASSERT_TRUE(planes_->protect(16));
  planes_->unprotect(5);
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    EXPECT_EQ(planes_->read_only(p), layout_.full_chunks(p, 5));
  }
  planes_->unprotect(0);
  EXPECT_FALSE(planes_->has_read_only());
}

}  // namespace
}  // namespace cachalot::vtensor

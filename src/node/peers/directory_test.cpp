#include "node/peers/directory.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

namespace cachalot::node {
namespace {

storage::ObjectKey key_of(std::uint64_t block) {
  return {{1, 2}, {block, 7}};
}
BlockNews news(std::uint64_t block, std::uint32_t length = 100) {
  return {key_of(block), {block - 1, 7}, length};
}

TEST(PeerDirectoryTest, ABlockIsThereAsLongAsAPeerHasIt) {
  PeerDirectory directory(100);
  directory.apply(3, std::vector{news(1), news(2)});
  directory.apply(63, std::vector{news(1)});
  ASSERT_TRUE(directory.find(key_of(1), 0));
  EXPECT_EQ(directory.find(key_of(1), 0)->owners, std::uint64_t{1} << 3 | std::uint64_t{1} << 63);
  EXPECT_EQ(directory.find(key_of(1), 0)->length, 100u);
  directory.apply(3, std::vector{news(1, 0)});
  EXPECT_EQ(directory.find(key_of(1), 0)->owners, std::uint64_t{1} << 63);
  directory.clear(63);
  EXPECT_FALSE(directory.find(key_of(1), 0));
  EXPECT_TRUE(directory.find(key_of(2), 0));
}

// The keeper asks while a peer with many blocks is lost: it does not wait until all are forgotten.
TEST(PeerDirectoryTest, IsAskedWhileAPeerIsForgotten) {
  constexpr std::uint64_t kBlocks = 300'000;
  PeerDirectory directory(kBlocks);
  std::vector<BlockNews> all;
  for (std::uint64_t i = 1; i <= kBlocks; ++i) all.push_back(news(i));
  bool is_between = false;  // a block was gone before one that was still there
  for (int tries = 0; tries < 20 && !is_between; ++tries) {
    directory.apply(3, all);
    std::atomic<bool> begins{false}, has_ended{false};
    std::thread keeper([&] {
      while (!has_ended) {
        bool is_any_gone = false;
        for (std::uint64_t i = 1; i <= kBlocks; i += kBlocks / 64) {
          const bool is_there = directory.find(key_of(i), 0).has_value();
          is_between = is_between || (is_any_gone && is_there);
          is_any_gone = is_any_gone || !is_there;
        }
        begins = true;
      }
    });
    while (!begins) std::this_thread::yield();
    directory.clear(3);
    has_ended = true;
    keeper.join();
    EXPECT_EQ(directory.blocks(), 0u);
  }
  EXPECT_TRUE(is_between);
}

TEST(PeerDirectoryTest, APeerThatSaysAnotherLengthIsLeftOut) {
  PeerDirectory directory(100);
  directory.apply(0, std::vector{news(1)});
  directory.apply(1, std::vector{news(1, 200)});
  EXPECT_EQ(directory.find(key_of(1), 0)->owners, 1u);
  EXPECT_EQ(directory.find(key_of(1), 0)->length, 100u);
}

TEST(PeerDirectoryTest, AFullDirectoryTakesNoNewBlocks) {
  PeerDirectory directory(2);
  directory.apply(0, std::vector{news(1), news(2), news(3)});
  directory.apply(1, std::vector{news(2)});
  EXPECT_EQ(directory.blocks(), 2u);
  EXPECT_EQ(directory.find(key_of(2), 0)->owners, 3u);
}

// The reader's "it was not there" may come after the peer's "I have it again": the peer does not say so twice.
TEST(PeerDirectoryTest, ADoubtEndsByItself) {
  PeerDirectory directory(100);
  directory.apply(0, std::vector{news(1)});
  directory.apply(1, std::vector{news(1)});
  directory.doubt(1, key_of(1), 1000, 50);
  EXPECT_EQ(directory.find(key_of(1), 1049)->owners, 2u);
  EXPECT_EQ(directory.find(key_of(1), 1050)->owners, 3u);
  directory.doubt(2, key_of(1), 1050, 50);  // not of peer 0 again
  EXPECT_EQ(directory.find(key_of(1), 1060)->owners, 1u);
  directory.doubt(3, key_of(1), 1050, 50);
  EXPECT_FALSE(directory.find(key_of(1), 1060));
  EXPECT_EQ(directory.blocks_of(0), 1u);
}

TEST(PeerDirectoryTest, ADoubtEndsWithNews) {
  PeerDirectory directory(100);
  directory.apply(0, std::vector{news(1)});
  directory.doubt(1, key_of(1), 0, 50);
  directory.apply(0, std::vector{news(1, 0)});
  directory.apply(0, std::vector{news(1)});
  EXPECT_TRUE(directory.find(key_of(1), 10));
  directory.doubt(1, key_of(1), 10, 50);
  directory.clear(0);
  directory.apply(0, std::vector{news(1)});  // another peer, of the same number
  EXPECT_TRUE(directory.find(key_of(1), 10));
}

RC_GTEST_PROP(PeerDirectoryTest, SaysWhatThePeersHaveSaid, ()) {
  PeerDirectory directory(1000);
  std::map<std::uint64_t, std::set<std::uint32_t>> model, doubts;
  const int steps = *rc::gen::inRange(1, 200);
  for (int i = 0; i < steps; ++i) {
    const auto peer = *rc::gen::inRange<std::uint32_t>(0, 4);
    const auto block = *rc::gen::inRange<std::uint64_t>(1, 20);
    switch (*rc::gen::inRange(0, 6)) {
      case 5: {
        directory.doubt(std::uint64_t{1} << peer, key_of(block), 0, 1);
        if (!model[block].empty()) doubts[block].insert(peer);
        break;
      }
      case 0:
        directory.clear(peer);
        for (auto& [at, owners] : model) owners.erase(peer);
        for (auto& [at, doubted] : doubts) doubted.erase(peer);
        break;
      case 1:
        directory.apply(peer, std::vector{news(block, 0)});
        model[block].erase(peer);
        doubts[block].erase(peer);
        break;
      default:
        directory.apply(peer, std::vector{news(block)});
        model[block].insert(peer);
        doubts[block].erase(peer);
    }
    std::size_t blocks = 0;
    for (const auto& [at, owners] : model) {
      std::uint64_t bits = 0, certain = 0;
      for (const std::uint32_t owner : owners) {
        bits |= std::uint64_t{1} << owner;
        if (!doubts[at].contains(owner)) certain |= std::uint64_t{1} << owner;
      }
      const auto known = directory.find(key_of(at), 0);
      RC_ASSERT((known ? known->owners : 0) == certain);
      const auto later = directory.find(key_of(at), 1);
      RC_ASSERT((later ? later->owners : 0) == bits);
      blocks += bits != 0;
    }
    RC_ASSERT(directory.blocks() == blocks);
    for (std::uint32_t one = 0; one < 4; ++one) {
      std::size_t own = 0;
      for (const auto& [at, owners] : model) own += owners.contains(one);
      RC_ASSERT(directory.blocks_of(one) == own);
    }
  }
}

}  // namespace
}  // namespace cachalot::node

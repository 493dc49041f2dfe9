#include <gtest/gtest.h>

#include "pool/pool.h"
#include "pool/reader/published_blocks.h"
#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

class ObjectsTest : public ::testing::TestWithParam<const char*> {
 protected:
  ObjectsTest()
      : cluster_(4096, 32, GetParam()), client_(Engine::attach(cluster_.client_options())) {
    base::Rng rng(5);
    for (std::byte& b : from_) b = static_cast<std::byte>(rng.next());
    EXPECT_TRUE(client_.register_buffer(from_.data(), from_.size()));
    EXPECT_TRUE(client_.register_buffer(to_.data(), to_.size()));
  }

  Cluster cluster_;
  Client client_;
  std::vector<std::byte> from_ = std::vector<std::byte>(16384), to_ = std::vector<std::byte>(16384);
};

TEST_P(ObjectsTest, ListsOfAnyPiecesComeBackInAnyOtherPieces) {
  base::Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    const std::string key = "key " + std::to_string(round);
    const auto cut = [&](std::vector<std::byte>& memory, std::uint64_t total) {
      std::vector<Buffer> parts;
      for (std::uint64_t at = rng.below(64), left = total; left != 0;) {
        const std::uint64_t bytes = std::min<std::uint64_t>(left, 1 + rng.below(700));
        parts.push_back({memory.data() + at, bytes});
        at += bytes + rng.below(100);
        left -= bytes;
      }
      return parts;
    };
    const std::uint64_t total = 1 + rng.below(4096);
    const std::vector<Buffer> in = cut(from_, total), out = cut(to_, total);
    const Result<std::uint64_t> put = client_.put(key, in);
    ASSERT_TRUE(put) << put.error().message;
    ASSERT_EQ(*put, total);
    ASSERT_EQ(*client_.put(key, in), 0u);  // exists already
    const Result<std::uint64_t> got = client_.get(key, out);
    ASSERT_TRUE(got) << got.error().message;
    std::vector<std::byte> a, b;
    for (const Buffer& part : in)
      a.insert(a.end(), static_cast<std::byte*>(part.data),
               static_cast<std::byte*>(part.data) + part.bytes);
    for (const Buffer& part : out)
      b.insert(b.end(), static_cast<std::byte*>(part.data),
               static_cast<std::byte*>(part.data) + part.bytes);
    ASSERT_TRUE(a == b) << round;
  }
  EXPECT_EQ(client_.statistics().damaged_blocks, 0u);
}

TEST_P(ObjectsTest, ExistsTellsEachKeyApart) {
  const Buffer part{from_.data(), 100};
  ASSERT_TRUE(client_.put("b", {&part, 1}));
  const std::string_view keys[] = {"a", "b", "", "b", "c"};
  bool present[5];
  ASSERT_TRUE(client_.exists(keys, present));
  EXPECT_EQ(std::vector<bool>(present, present + 5),
            (std::vector<bool>{false, true, false, true, false}));
}

TEST_P(ObjectsTest, ExistsOfManyKeysTellsWhatExistsOfEachTells) {
  const Buffer part{from_.data(), 64};
  // More objects than fit, so some are evicted.
  for (int i = 0; i < 60; ++i)
    ASSERT_TRUE(client_.put("key " + std::to_string(i), {&part, 1})) << i;
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back("key " + std::to_string(i * 7 % 90));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const auto ask = [&](std::size_t keys_a_call) {
    const auto present = std::make_unique<bool[]>(keys.size());
    for (std::size_t at = 0; at < keys.size(); at += keys_a_call) {
      const std::size_t count = std::min(keys_a_call, keys.size() - at);
      EXPECT_TRUE(client_.exists({keys.data() + at, count}, {present.get() + at, count}));
    }
    return std::vector<bool>(present.get(), present.get() + keys.size());
  };
  std::vector<bool> one_by_one = ask(1), together;
  for (std::vector<bool> before; before != one_by_one;) {  // the keeper may still evict
    before = one_by_one;
    together = ask(keys.size());
    one_by_one = ask(1);
  }
  EXPECT_EQ(together, one_by_one);
  EXPECT_NE(std::count(together.begin(), together.end(), true), 0);
  EXPECT_NE(std::count(together.begin(), together.end(), false), 0);
}

TEST_P(ObjectsTest, WhatIsOutOfPlaceIsRefused) {
  const auto code = [](const auto& result) {
    return result ? Code::kInternal : result.error().code;
  };
  std::vector<std::byte> stranger(64);
  const Buffer outside{stranger.data(), 64}, past{from_.data() + 16000, 1000},
      huge{from_.data(), ~0ull};
  const Buffer whole{from_.data(), 5000}, good{from_.data(), 64}, small{to_.data(), 32};
  EXPECT_EQ(code(client_.put("k", {&outside, 1})), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.put("k", {&past, 1})), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.put("k", {&huge, 1})), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.put("k", {&whole, 1})), Code::kInvalidArgument);  // bigger than a block
  EXPECT_EQ(code(client_.put("k", {})), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.get("k", {&small, 1})), Code::kNotFound);
  ASSERT_TRUE(client_.put("k", {&good, 1}));
  EXPECT_EQ(code(client_.get("k", {&small, 1})), Code::kInvalidArgument);  // 32 of 64 bytes
  const Buffer apart[] = {{to_.data() + 32, 32}, {to_.data(), 32}},
               overlapping[] = {{to_.data() + 31, 32}, {to_.data(), 32}};
  EXPECT_TRUE(client_.get("k", apart));
  EXPECT_EQ(code(client_.get("k", overlapping)), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.register_buffer(from_.data() + 10, 10)), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.register_buffer(nullptr, 10)), Code::kInvalidArgument);
  EXPECT_EQ(code(client_.unregister_buffer(stranger.data())), Code::kNotFound);
  ASSERT_TRUE(client_.unregister_buffer(from_.data()));
  EXPECT_EQ(code(client_.put("l", {&good, 1})), Code::kInvalidArgument);
}

TEST_P(ObjectsTest, ADamagedObjectIsNotThereAnyMoreAndIsReplaced) {
  ClientOptions options = cluster_.client_options();
  options.checksums = true;
  Client client = Engine::attach(options), other = Engine::attach(options);
  const Buffer in{from_.data(), 100}, out{to_.data(), 100};
  for (Client* const one : {&client, &other}) {
    ASSERT_TRUE(one->register_buffer(from_.data(), from_.size()));
    ASSERT_TRUE(one->register_buffer(to_.data(), to_.size()));
  }
  const auto exists = [](const Client& of) {
    const std::string_view key = "key";
    bool is_present = false;
    EXPECT_TRUE(of.exists({&key, 1}, {&is_present, 1}));
    return is_present;
  };
  ASSERT_EQ(*client.put("key", {&in, 1}), 100u);
  Result<pool::Pool> pool = pool::Pool::open({cluster_.path()});
  ASSERT_TRUE(pool);
  pool::for_each_published(pool->access(), [&](const pool::Entry& entry) {
    pool->access().for_each_extent(entry.block, 64,
                                   [](std::byte* at, std::uint64_t) { *at ^= std::byte{1}; });
  });
  for (Client* const one : {&client, &other}) {
    EXPECT_TRUE(exists(*one));  // it was not read yet
    for (int round = 0; round < 2; ++round)
      EXPECT_EQ(one->get("key", {&out, 1}).error().code, Code::kCorrupt);
    EXPECT_EQ(one->statistics().damaged_blocks, 1u);
    EXPECT_FALSE(exists(*one));
  }
  EXPECT_EQ(*client.put("key", {&in, 1}), 100u);
  EXPECT_TRUE(exists(client));
  EXPECT_TRUE(exists(other));
  EXPECT_EQ(*other.put("key", {&in, 1}), 0u);  // the sound one stays
  EXPECT_EQ(*other.get("key", {&out, 1}), 100u);
  EXPECT_TRUE(std::equal(from_.begin(), from_.begin() + 100, to_.begin()));
}

INSTANTIATE_TEST_SUITE_P(Domains, ObjectsTest, ::testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot::client

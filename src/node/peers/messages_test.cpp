#include "node/peers/messages.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace cachalot::node {
namespace {

GotBlock got_block(std::uint64_t hash, std::size_t tokens) {
  GotBlock block;
  block.head.key = {{1, 2}, {hash, 3}};
  block.head.payload_bytes = 4096;
  block.head.tokens = static_cast<std::uint32_t>(tokens);
  block.head.seal = hash * 3;
  for (std::size_t i = 0; i < tokens; ++i) block.tokens.push_back(static_cast<std::uint32_t>(i));
  return block;
}

std::vector<PeerMessage> one_of_each() {
  return {FollowMessage{},
          NewsMessage{true, {{{{1, 2}, {3, 4}}, {5, 6}, 7}, {{{1, 2}, {8, 9}}, {}, 0}}},
          GetMessage{1, 2, 3, {4, 5}, {{{6, 7}, {8, 9}, 10}, {{11, 12}, {13, 14}, 15}}},
          GotMessage{9, {got_block(1, 0), got_block(2, 16)}},
          RefusedGetMessage{4, Error::make(Code::kBusy, "too much")},
          ChallengeMessage{{1, 2}},
          ProofMessage{{1, 2, 3, 4}}};
}

TEST(PeerMessagesTest, WhatIsEncodedComesBack) {
  for (const PeerMessage& message : one_of_each()) {
    const std::vector<std::byte> bytes = encode(message);
    const Result<PeerMessage> read = decode_peer_message(bytes);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(encode(*read), bytes);
  }
  const Result<PeerMessage> news = decode_peer_message(encode(one_of_each()[1]));
  const auto& blocks = std::get<NewsMessage>(*news).blocks;
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_TRUE(blocks[0].key.block == (BlockHash{3, 4}) && blocks[0].parent == (BlockHash{5, 6}));
  EXPECT_TRUE(blocks[0].length == 7u && blocks[1].length == 0u);
}

TEST(PeerMessagesTest, MessagesThatAreCutOffAreRefused) {
  for (const PeerMessage& message : one_of_each()) {
    const std::vector<std::byte> bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const Result<PeerMessage> read = decode_peer_message(std::span(bytes).first(length));
      ASSERT_FALSE(read) << length;
      EXPECT_EQ(read.error().code, Code::kBadInput);
    }
  }
}

TEST(PeerMessagesTest, TooManyBlocksAreRefused) {
  GetMessage get;
  get.blocks.resize(kMostGetBlocks + 1);
  EXPECT_FALSE(decode_peer_message(encode(get)));
  NewsMessage news;
  news.blocks.resize(kMostNews + 1);
  EXPECT_FALSE(decode_peer_message(encode(news)));
  GotMessage got;
  got.blocks.resize(kMostGetBlocks + 1);
  EXPECT_FALSE(decode_peer_message(encode(got)));
}

// Any bytes are read or refused; sanitizers see the rest.
TEST(PeerMessagesTest, ChangedBytesHarmNothing) {
  base::Rng random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = encode(one_of_each()[random.below(7)]);
    for (std::uint64_t i = random.below(4); i > 0; --i)
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size() + 1));
    const Result<PeerMessage> read = decode_peer_message(bytes);
    EXPECT_TRUE(read || read.error().code == Code::kBadInput);
  }
}

}  // namespace
}  // namespace cachalot::node

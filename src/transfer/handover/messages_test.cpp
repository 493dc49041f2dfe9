// The bytes of messages: what an older peer would read in another way takes another version.
#include "transfer/handover/messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "transfer/link/frame.h"

namespace cachalot::transfer {
namespace {

// One of each kind, no member as it is by default.
std::vector<Message> one_of_each_kind() {
  const OfferName offer{11, 12};
  const Proof proof = {91, 92, 93, 94};
  const InstanceShape shape{2, 3, {4, 5, 6}, {0, 0, 0, 1, 1, 1}};
  AskMessage ask;
  ask.ask = 1;
  ask.offer = offer;
  ask.nonce = {81, 82};
  ask.proof = proof;
  ask.shape = shape;
  ask.rank = 4;
  ask.first_token = 5;
  ask.tokens = 50;
  ask.waits_for_offer = ask.is_copy = true;
  ask.hash = BlockHash{21, 22};
  ask.fetches.resize(2);
  ask.fetches[1].heads = 8;
  return {ask,
          PlanMessage{1, {{Loops::kPartTokenHead, 7}, {Loops::kPartPageHeadToken, 8}}, proof},
          GoMessage{1, {31, 32}},
          RefusalMessage{1, Error::make(Code::kStale, "text")},
          NoteMessage{1, {std::byte{1}, std::byte{2}}},
          CancelMessage{1},
          NothingMessage{offer, shape, proof},
          DeclineMessage{offer, proof}};
}

std::uint32_t crc_of(std::span<const std::byte> bytes, std::uint32_t crc) {
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    crc = base::crc32c_word(crc, word);
  }
  return crc;
}

TEST(HandoverMessages, AreReadBackAsTheyWere) {
  for (const Message& message : one_of_each_kind()) {
    const std::vector<std::byte> bytes = encode(message);
    const Result<Message> read = decode(bytes);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(encode(*read), bytes);
    // Neither with a word less nor with one more.
    EXPECT_FALSE(decode(std::span(bytes).first(bytes.size() - 8)).ok());
    std::vector<std::byte> more = bytes;
    more.resize(bytes.size() + 8);
    EXPECT_FALSE(decode(more).ok());
  }
}

// If this fails, the bytes have changed: raise kWireVersion, add the new version and its sum here, and describe it in
// docs/formats/transfer.md.
TEST(HandoverMessages, OtherBytesTakeAnotherVersion) {
  const std::map<std::uint16_t, std::uint32_t> sums = {{4, 2831883743u}};
  std::uint32_t sum = base::kCrc32cInit;
  for (const Message& message : one_of_each_kind()) {
    const std::vector<std::byte> bytes = encode(message);
    ASSERT_EQ(bytes.size() % 8, 0u);
    sum = crc_of(bytes, sum);
  }
  ASSERT_TRUE(sums.contains(kWireVersion));
  EXPECT_EQ(sum, sums.at(kWireVersion));
}

TEST(HandoverMessages, AShapeWithMachinesOfOtherRanksIsRefused) {
  const NothingMessage wrong{{1, 2}, {2, 1, {}, {0, 0, 0}}};
  const Result<Message> read = decode(encode(wrong));
  ASSERT_FALSE(read.ok());
  EXPECT_NE(std::string(read.error().message).find("machines of 3 ranks"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::transfer

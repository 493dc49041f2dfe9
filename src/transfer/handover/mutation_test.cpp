// Valid conversations with one frame changed at random, thousands of them: the rank ends each, writes nothing outside of the
// receiving pages, and works with the next peer.
#include <cstring>

#include "base/crc32c.h"
#include "base/rng.h"
#include "testing/transfer/lying_peers.h"

namespace cachalot::transfer {
namespace {

// Changes the frames of a conversation.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : rng_(seed) {}

  // The bytes that are sent in place of a frame with its payload and trailer.
  Bytes change(const Bytes& frame) {
    Bytes bytes = frame;
    switch (rng_.below(9)) {
      case 0:  // as any network fault: the CRC finds it
        flip(bytes);
        break;
      case 1:
      case 2:
        change_word(bytes);
        break;
      case 3:
        change_word(bytes);
        change_word(bytes);
        break;
      case 4:
        bytes.resize(rng_.below(bytes.size()));
        break;
      case 5:
        bytes.insert(bytes.end(), frame.begin(), frame.end());  // twice
        break;
      case 6:
        change_header(bytes);
        break;
      case 7: {
        Bytes noise(1 + rng_.below(200));
        for (std::byte& b : noise) b = static_cast<std::byte>(rng_.next());
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(rng_.below(bytes.size())),
                     noise.begin(), noise.end());
        break;
      }
      case 8:
        bytes.clear();
        break;
    }
    return bytes;
  }
  base::Rng& rng() { return rng_; }

 private:
  void flip(Bytes& bytes) {
    bytes[rng_.below(bytes.size())] ^= static_cast<std::byte>(1 + rng_.below(255));
  }
  // A word of the body becomes another one, and the CRC follows.
  void change_word(Bytes& bytes) {
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.body_bytes == 0) return flip(bytes);
    const std::size_t at = sizeof header + 8 * rng_.below(header.body_bytes / 8);
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    const std::uint64_t values[] = {0,           1,
                                    word + 1,    word - 1,
                                    word * 2,    std::uint64_t{1} << 32,
                                    ~word,       ~std::uint64_t{0},
                                    rng_.next(), word ^ (std::uint64_t{1} << rng_.below(64))};
    word = values[rng_.below(std::size(values))];
    std::memcpy(bytes.data() + at, &word, 8);
    seal(bytes, header);
  }
  void change_header(Bytes& bytes) {
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    switch (rng_.below(4)) {
      case 0:
        header.type = static_cast<std::uint16_t>(rng_.below(14));
        break;
      case 1:
        header.body_bytes = static_cast<std::uint32_t>(8 * rng_.below(64));
        break;
      case 2:
        header.payload_bytes = rng_.next() >> rng_.below(64);
        break;
      case 3:
        header.version = static_cast<std::uint16_t>(rng_.below(4));
        break;
    }
    std::memcpy(bytes.data(), &header, sizeof header);
    if (sizeof header + header.body_bytes > bytes.size())
      bytes.resize(sizeof header + header.body_bytes);
    seal(bytes, header);
  }
  static void seal(Bytes& bytes, FrameHeader header) {
    header.crc = 0;
    std::uint32_t crc = base::kCrc32cInit;
    std::memcpy(bytes.data(), &header, sizeof header);
    for (std::size_t i = 0; i < sizeof header + header.body_bytes; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      crc = base::crc32c_word(crc, word);
    }
    header.crc = crc;
    std::memcpy(bytes.data(), &header, sizeof header);
  }

  base::Rng rng_;
};

constexpr std::uint64_t kMutations = 3000;

TEST_F(LyingPrefill, MutatedFramesOfAPrefillRankDoNoHarm) {
  std::uint64_t done = 0, failed = 0;
  for (std::uint64_t seed = 0; seed < kMutations; ++seed) {
    SCOPED_TRACE(seed);
    Mutator mutator(base::mix64(seed + 1));
    const std::uint64_t which = mutator.rng().below(4);  // hello, reads, plan, chunk
    ask(5 * kSecond);
    const auto send = [&](std::uint64_t i, const Bytes& bytes) {
      return peer->send(i == which ? mutator.change(bytes) : bytes);
    };
    bool goes_on = send(0, encode(hello(), 0)) && send(1, encode(reads_of(), 0));
    std::uint64_t window = 0;
    if (goes_on) {
      const auto asked = peer->receive(FrameType::kMessage, which < 2 ? 10 : 5000);
      goes_on = asked.has_value();
      if (asked) {
        ask_number = message_of<AskMessage>(asked).ask;
        send(2,
             encode(message(PlanMessage{ask_number, {StreamOrder{Loops::kPartTokenHead, 0}}}), 0));
      }
    }
    if (goes_on) {
      const auto went = peer->receive(FrameType::kMessage, which < 3 ? 10 : 5000);
      if (went) {
        BodyReader body(went->body);
        const Result<Message> m = transfer::decode(body.bytes(kMostMessageBytes));
        if (m && std::holds_alternative<GoMessage>(*m)) {
          window = std::get<GoMessage>(*m).windows.at(0);
          send(3, whole(window).encoded());
          if (which == 3 && mutator.rng().chance(0.5)) peer->send(whole(window).encoded());
          (void)peer->receive(FrameType::kTaken, 10);
        }
      }
    }
    peer.reset();
    const AskStatus status = ended_ask(*decode.rank, number);
    ++(status.state == HandoverState::kDone ? done : failed);
    decode.rank->release(number);
    ASSERT_TRUE(decode.is_rest_untouched());
  }
  expect_empty(*decode.rank);
  EXPECT_GT(done, 0u);
  EXPECT_GT(failed, kMutations / 4);
  // The next one is served.
  ask();
  peer->send(whole(open_window()).encoded());
  EXPECT_EQ(ended_ask(*decode.rank, number).state, HandoverState::kDone);
}

TEST_F(LyingDecode, MutatedFramesOfADecodeRankDoNoHarm) {
  for (std::uint64_t seed = 0; seed < kMutations; ++seed) {
    SCOPED_TRACE(seed);
    Mutator mutator(base::mix64(seed + 7'000'001));
    const std::uint64_t which = mutator.rng().below(5);  // hello, reads, ask, go, taken
    offer(60 * kSecond);
    peer.emplace(RawPeer::connect(prefill.rank->addresses().front()));
    const auto send = [&](std::uint64_t i, const Frame& frame) {
      const Bytes bytes = encode(frame, 0);
      return peer->send(i == which ? mutator.change(bytes) : bytes);
    };
    bool goes_on = send(0, hello_of("d/0", ++incarnation, prefill.facts, "p/0")) &&
                   send(1, reads_of()) && send(2, message(true_ask()));
    goes_on = goes_on && peer->receive(FrameType::kMessage, which < 3 ? 10 : 5000);
    if (goes_on) send(3, message(GoMessage{1, {77}}));
    if (goes_on) {
      if (const auto chunk = peer->receive(FrameType::kChunk, which < 4 ? 10 : 5000)) {
        BodyReader body(chunk->body);
        send(4, {FrameType::kTaken,
                 BodyWriter().word(body.word()).word(0).word(kStreamBytes).word(0).take()});
        (void)peer->receive(1);
      }
    }
    peer.reset();
    (void)prefill.rank->withdraw(id);
    (void)prefill.rank->ended_offers();
    ASSERT_EQ(prefill.rank->statistics().open_offers, 0u);
  }
  EXPECT_TRUE(prefill.is_untouched());
  offer();
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
}

}  // namespace
}  // namespace cachalot::transfer

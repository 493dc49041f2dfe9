// Links over UCX between two processes: frames, payloads, their ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "transfer/link/payload_copy.h"
#include "transfer/ucx/ucx_test_peer.h"

namespace cachalot::transfer {
namespace {

// Memory of `total` bytes that lies in pieces of a random size and order, with gaps; both sides of a test have others.
class Scattered {
 public:
  Scattered(std::uint64_t total, base::Rng& rng) : total_(total) {
    const std::uint64_t pieces = std::uint64_t{1} << rng.below(8);
    const std::uint64_t piece = total % pieces == 0 ? total / pieces : total;
    const std::uint64_t count = total / piece;
    const std::uint64_t gap = rng.below(3) == 0 ? 0 : 64;
    bytes_.resize(count * (piece + gap));
    std::vector<std::uint64_t> places(count);
    for (std::uint64_t i = 0; i < count; ++i) places[i] = i * (piece + gap);
    for (std::uint64_t i = count; gap != 0 && i > 1; --i)
      std::swap(places[i - 1], places[rng.below(i)]);
    memory = std::make_shared<PayloadMemory>(*Strided::make(
        reinterpret_cast<std::uintptr_t>(bytes_.data()),
        {{.count = count, .stride = piece, .offsets = places, .per_offset = 1}}, piece));
  }
  void fill(std::uint64_t seed) {
    const std::vector<std::byte> all = content_of(seed, total_);
    scatter(all, memory->stream(), 0);
  }
  bool holds(std::uint64_t seed) const {
    std::vector<std::byte> all(total_);
    gather(memory->stream(), 0, all);
    return all == content_of(seed, total_);
  }

  std::shared_ptr<PayloadMemory> memory;

 private:
  static std::vector<std::byte> content_of(std::uint64_t seed, std::uint64_t total) {
    base::Rng rng(seed);
    std::vector<std::byte> all(total);
    for (auto& byte : all) byte = static_cast<std::byte>(rng.next());
    return all;
  }
  const std::uint64_t total_;
  std::vector<std::byte> bytes_;
};

std::uint64_t size_of_payload(std::uint64_t number) {
  base::Rng rng(number);
  // Small ones that share a segment, some around the sizes at which the way changes, some of several slices.
  switch (rng.below(4)) {
    case 0:
      return 1 + rng.below(5000);
    case 1:
      return (64 << 10) - 2 + rng.below(4);
    case 2:
      return (std::uint64_t{128} << rng.below(12)) * 8;
    default:
      return 1 + rng.below(3 << 20);
  }
}

// By UCX's transports; "": those that UCX chooses.
class UcxTransports : public ::testing::TestWithParam<const char*> {
 protected:
  static UcxOptions options() {
    UcxOptions options = UcxPeer::default_options();
    options.transports = GetParam();
    return options;
  }
};

TEST_P(UcxTransports, FramesArriveInOrderWhateverTheirSize) {
  constexpr std::uint64_t kFrames = 2000;
  const auto frame = [](std::uint64_t number) {
    const std::uint64_t words = number % 100 == 7 ? 40'000 : number % 13;
    return Frame{FrameType::kMessage,
                 BodyWriter().word(number).words(std::vector<std::uint64_t>(words, number)).take()};
  };
  const auto exchange = [&](UcxPeer& peer, Link& link) {
    std::uint64_t next = 0;
    peer.when_frame = [&](Link&, const Frame& got) {
      CACHALOT_MUST(got.body == frame(next).body);
      ++next;
    };
    for (std::uint64_t i = 0; i < kFrames; ++i) link.send(frame(i));
    CACHALOT_MUST(peer.run_until([&] { return next == kFrames; }));
  };
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer(options());
        to.from_first.say(peer.listen());
        CACHALOT_MUST(peer.run_until([&] { return !peer.accepted.empty(); }));
        exchange(peer, *peer.accepted[0]);
        to.to_second.say("end");
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer(options());
        Link& link = peer.connect(address);
        exchange(peer, link);
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
        link.close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      });
  pair.expect_both_succeed();
}

TEST_P(UcxTransports, ALinkEndsBeforeFramesThatNothingReadsFillTheMemory) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer(options());
        to.from_first.say(peer.listen());
        CACHALOT_MUST(peer.run_until([&] { return !peer.accepted.empty(); }));
        peer.accepted[0]->send(word_frame(FrameType::kMessage, 1));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair&, const std::string& address) {
        UcxPeer peer(options());
        bool is_connected = false;
        peer.when_frame = [&](Link&, const Frame&) { is_connected = true; };
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return is_connected; }));
        const Frame large{FrameType::kMessage,
                          BodyWriter().words(std::vector<std::uint64_t>(1 << 17, 1)).take()};
        // Without progress nothing leaves. The 34th one finds 33 MiB.
        for (int i = 0; i < 34; ++i) link.send(large);
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(std::string(peer.closed.front().second.message).find("does not read") !=
                      std::string::npos);
      });
  pair.expect_both_succeed();
}

TEST_P(UcxTransports, PayloadsOfAnyMemoryArriveInAnyOtherMemory) {
  constexpr std::uint64_t kPayloads = 80;
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer(options());
        to.from_first.say(peer.listen());
        base::Rng rng(11);
        std::map<std::uint64_t, std::unique_ptr<Scattered>> targets;
        std::uint64_t frames = 0;
        peer.when_payload = [&](Link&, const Frame& frame, std::uint64_t bytes) {
          const std::uint64_t number = BodyReader(frame.body).word();
          CACHALOT_MUST(bytes == size_of_payload(number));
          auto& target = targets[number] = std::make_unique<Scattered>(bytes, rng);
          return IncomingPayload{target->memory, 0, number % 3 == 0, false};
        };
        peer.when_frame = [&](Link&, const Frame&) { ++frames; };
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() == kPayloads; }));
        CACHALOT_MUST(frames == kPayloads);
        for (const auto& [number, end] : peer.ends) {
          CACHALOT_MUST(end == PayloadEnd::kWritten);
          CACHALOT_MUST(targets.at(number)->holds(number));
        }
        peer.accepted[0]->send(word_frame(FrameType::kMessage, 1));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair&, const std::string& address) {
        UcxPeer peer(options());
        base::Rng rng(12);
        std::vector<std::unique_ptr<Scattered>> sources;
        peer.when_next = [&](Link& link, OutgoingPayload& payload) {
          const std::uint64_t number = sources.size();
          if (number == kPayloads) return false;
          sources.push_back(std::make_unique<Scattered>(size_of_payload(number), rng));
          sources.back()->fill(number);
          link.send(word_frame(FrameType::kMessage, number));
          payload = {word_frame(FrameType::kChunk, number), sources.back()->memory, 0,
                     size_of_payload(number), number % 3 == 0};
          return true;
        };
        bool is_taken = false;
        peer.when_frame = [&](Link&, const Frame&) { is_taken = true; };
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return is_taken; }));
        CACHALOT_MUST(peer.sent == kPayloads);
        CACHALOT_MUST(peer.transport->staging_bytes() % (2 << 20) == 0);
        CACHALOT_MUST(peer.transport->staging_bytes() <= 4 << 20);
        link.close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      });
  pair.expect_both_succeed();
}

INSTANTIATE_TEST_SUITE_P(All, UcxTransports, ::testing::Values("tcp", ""),
                         [](const auto& one) { return *one.param == 0 ? "Any" : "Tcp"; });

// One payload of `bytes` bytes in one piece or in many, then another one that must arrive.
struct TwoPayloads {
  explicit TwoPayloads(std::uint64_t piece, std::uint64_t total = 32 << 20)
      : bytes(total), memory_bytes(total / piece * (piece + 64)), other_bytes(memory_bytes.size()) {
    memory = std::make_shared<PayloadMemory>(stream(memory_bytes, piece));
    other = std::make_shared<PayloadMemory>(stream(other_bytes, piece));
  }
  ByteStream stream(const std::vector<std::byte>& in, std::uint64_t piece) const {
    return *Strided::make(reinterpret_cast<std::uintptr_t>(in.data()),
                          {{.count = bytes / piece, .stride = piece + 64}}, piece);
  }
  std::function<bool(Link&, OutgoingPayload&)> source() {
    return [this](Link&, OutgoingPayload& payload) {
      if (next == 2) return false;
      payload = {word_frame(FrameType::kChunk, next), next == 0 ? memory : other, 0, bytes, false};
      ++next;
      return true;
    };
  }
  const std::uint64_t bytes;
  std::vector<std::byte> memory_bytes, other_bytes;
  std::shared_ptr<PayloadMemory> memory, other;
  std::uint64_t next = 0;
};

class UcxPieces : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(UcxPieces, APayloadIsVoidIfTheSenderTakesItsMemoryBackInTheMiddle) {
  // More than the system's socket buffers hold: the sender cannot have sent all when the receiver has only begun.
  constexpr std::uint64_t kTotal = 64 << 20;
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        TwoPayloads target(GetParam(), kTotal);
        peer.when_payload = [&](Link& link, const Frame& frame, std::uint64_t) {
          const bool is_first = BodyReader(frame.body).word() == 0;
          if (is_first) link.send(word_frame(FrameType::kMessage, 0));
          return IncomingPayload{is_first ? target.memory : target.other, 0, false, false};
        };
        CACHALOT_MUST(peer.run_until([&] { return target.memory_bytes[0] == std::byte{7}; }));
        peer.transport->progress();  // the frame leaves
        CACHALOT_MUST(to.to_first.hear() == "taken back");
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() == 2; }));
        CACHALOT_MUST(peer.ends[0] == std::pair(std::uint64_t{0}, PayloadEnd::kVoid));
        CACHALOT_MUST(peer.ends[1] == std::pair(std::uint64_t{1}, PayloadEnd::kWritten));
        to.to_second.say("end");
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        TwoPayloads source(GetParam(), kTotal);
        source.memory_bytes.assign(source.memory_bytes.size(), std::byte{7});
        peer.when_next = source.source();
        bool has_left = false;
        peer.when_frame = [&](Link&, const Frame&) {
          source.memory->close();
          has_left = true;
          to.to_first.say("taken back");
        };
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return has_left && peer.sent == 2; }));
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
        link.close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      });
  pair.expect_both_succeed();
}

TEST_P(UcxPieces, NothingIsWrittenAfterTheReceiverHasItsMemoryBack) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        TwoPayloads target(GetParam());
        peer.when_payload = [&](Link&, const Frame& frame, std::uint64_t) {
          const bool is_first = BodyReader(frame.body).word() == 0;
          return IncomingPayload{is_first ? target.memory : target.other, 0, false, false};
        };
        const auto has_begun = [&] { return target.memory_bytes[0] == std::byte{7}; };
        CACHALOT_MUST(peer.run_until(has_begun));
        target.memory->close();
        const std::vector<std::byte> then = target.memory_bytes;
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() == 1; }));
        CACHALOT_MUST(peer.ends[0] == std::pair(std::uint64_t{0}, PayloadEnd::kVoid));
        CACHALOT_MUST(then == target.memory_bytes);
        peer.accepted[0]->send(word_frame(FrameType::kMessage, 0));
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() == 2; }));
        CACHALOT_MUST(peer.ends[1] == std::pair(std::uint64_t{1}, PayloadEnd::kWritten));
        to.to_second.say("end");
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        TwoPayloads source(GetParam());
        std::fill(source.memory_bytes.begin(), source.memory_bytes.end(), std::byte{7});
        bool has_second = false;
        peer.when_frame = [&](Link& link, const Frame&) {
          has_second = true;
          link.wants_payload();
        };
        const auto next = source.source();
        peer.when_next = [&](Link& link, OutgoingPayload& payload) {
          return (source.next == 0 || has_second) && next(link, payload);
        };
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return peer.sent == 2; }));
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
        link.close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      });
  pair.expect_both_succeed();
}

TEST_P(UcxPieces, AChangedByteIsSeenByTheChecksum) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        TwoPayloads target(GetParam(), 4 << 20);
        peer.when_payload = [&](Link&, const Frame& frame, std::uint64_t) {
          const bool is_first = BodyReader(frame.body).word() == 0;
          return IncomingPayload{is_first ? target.memory : target.other, 0, true, is_first};
        };
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() == 2; }));
        CACHALOT_MUST(peer.ends[0] == std::pair(std::uint64_t{0}, PayloadEnd::kCorrupt));
        CACHALOT_MUST(peer.ends[1] == std::pair(std::uint64_t{1}, PayloadEnd::kWritten));
        to.to_second.say("end");
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        TwoPayloads source(GetParam(), 4 << 20);
        const auto next = source.source();
        peer.when_next = [&](Link& link, OutgoingPayload& payload) {
          const bool has_one = next(link, payload);
          payload.has_checksum = true;
          return has_one;
        };
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
        link.close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      });
  pair.expect_both_succeed();
}

INSTANTIATE_TEST_SUITE_P(All, UcxPieces, ::testing::Values(kWhole, kPieces), name_of);

}  // namespace
}  // namespace cachalot::transfer

// A peer that lies about segments: places, sizes, numbers, windows. The endpoint has one clear error, writes nothing
// outside of the registered memory or the batch, and works with the next peer.
#include <cachalot/transfer_endpoint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "testing/transfer/frame_mutator.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/segments/messages.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kLong = 20 * kSecond;
constexpr std::size_t kGuard = 4096, kBytes = 64 << 10;
const std::map<std::string, std::string> kFacts = {{kVersionFact, kVersion}};
constexpr std::byte kOld{0x5a};

Frame message(const SegmentMessage& m) {
  return {FrameType::kMessage, BodyWriter().bytes(encode(m)).take()};
}

// Of the next message. None: another one, or none came.
template <class T>
std::optional<T> receive(RawPeer& peer, int timeout_ms = 5000) {
  const std::optional<Frame> frame = peer.receive(FrameType::kMessage, timeout_ms);
  if (!frame) return std::nullopt;
  BodyReader body(frame->body);
  Result<SegmentMessage> read = decode_segment_message(body.bytes(2 << 20));
  if (!read || !std::holds_alternative<T>(*read)) return std::nullopt;
  return std::get<T>(*read);
}

ByteStream flat(std::uint64_t offset, std::uint64_t bytes) {
  return *Strided::make(offset, {}, bytes);
}

// Memory between guards.
struct Guarded {
  std::span<std::byte> inside() { return std::span(bytes).subspan(kGuard, kBytes); }
  bool is_rest_untouched() const {
    return std::all_of(bytes.begin(), bytes.begin() + kGuard, [](auto b) { return b == kOld; }) &&
           std::all_of(bytes.end() - kGuard, bytes.end(), [](auto b) { return b == kOld; });
  }
  bool is_untouched() const {
    return std::all_of(bytes.begin(), bytes.end(), [](auto b) { return b == kOld; });
  }
  std::vector<std::byte> bytes = std::vector<std::byte>(kBytes + 2 * kGuard, kOld);
};

// --- The owner, and another one that lies --------------------------------------------------------------

class LyingCaller : public ::testing::Test {
 protected:
  LyingCaller() {
    Result<TransferEndpoint> opened =
        TransferEndpoint::open({.name = "owner", .listen = {"tcp:127.0.0.1:0"}});
    if (!opened) ADD_FAILURE() << opened.error().message;
    owner.emplace(*std::move(opened));
    EXPECT_TRUE(owner->register_memory("both", memory.inside(), SegmentAccess::kReadWrite));
    EXPECT_TRUE(owner->register_memory("read", secret.inside(), SegmentAccess::kRead));
    EXPECT_TRUE(owner->register_memory("write", secret.inside(), SegmentAccess::kWrite));
  }
  void greet() {
    peer.emplace(RawPeer::connect(owner->addresses().front()));
    peer->send(hello_of("liar", ++incarnation, kFacts, "owner"));
    peer->send(reads_of());
  }
  std::uint64_t open(const char* name) {
    peer->send(message(OpenMessage{next, name}));
    const auto opened = receive<OpenedMessage>(*peer);
    EXPECT_TRUE(opened && opened->request == next) << name;
    ++next;
    return opened ? opened->segment : 0;
  }
  void expect_refusal(std::uint64_t number, Code code, const char* part) {
    const auto refused = receive<RefusedMessage>(*peer);
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->number, number);
    EXPECT_EQ(refused->error.code, code) << refused->error.message;
    EXPECT_NE(std::string(refused->error.message).find(part), std::string::npos)
        << refused->error.message;
  }
  void expect_empty() {
    const std::uint64_t end_ns = base::SteadyClock::read() + kLong;
    while (owner->statistics().open_served_batches > 0) {
      ASSERT_LT(base::SteadyClock::read(), end_ns) << "a batch of a peer is left";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Guarded memory, secret;
  std::optional<TransferEndpoint> owner;
  std::optional<RawPeer> peer;
  std::uint64_t incarnation = 100, next = 1;
};

TEST_F(LyingCaller, ThatTellsTheTruthIsServed) {
  greet();
  const std::uint64_t segment = open("both");
  peer->send(message(WriteMessage{9, segment, kLong, flat(100, 1000)}));
  const auto window = receive<WindowMessage>(*peer);
  ASSERT_TRUE(window && window->batch == 9);
  peer->send(
      ChunkFrame{.window = window->window, .total = 1000, .payload = Bytes(1000, std::byte{0x11})}
          .encoded());
  ASSERT_TRUE(peer->receive(FrameType::kTaken));
  EXPECT_EQ(std::count(memory.inside().begin(), memory.inside().end(), std::byte{0x11}), 1000);
  EXPECT_EQ(memory.inside()[100], std::byte{0x11});
  EXPECT_TRUE(memory.is_rest_untouched());
  expect_empty();
}

TEST_F(LyingCaller, ThatNamesPlacesOutsideOfTheSegmentIsRefused) {
  greet();
  const std::uint64_t segment = open("both");
  const std::uint64_t most = ~std::uint64_t{0} >> 1;
  const std::vector<ByteStream> lies = {
      flat(kBytes, 1),
      flat(kBytes - 1, 2),
      flat(0, kBytes + 1),
      flat(most - 1, 1),
      flat(1, most - 1),
      *Strided::make(0, {{2, kBytes}}, 1),
      *Strided::make(kBytes - 1, {{2, 1}}, 1),
      *Strided::make(0, {{std::uint64_t{1} << 40, 1}}, 1),
      *Strided::make(0, {{2, 0, {0, kBytes}}}, 1),
      *Strided::make(0, {{2, 0, {most - 4, 0}}}, 1),
      *Strided::make(0, {{4, kBytes / 2, {0, 1}, 2}}, kBytes / 2),
      *ByteStream::make(1, {*Strided::make(0, {}, 8), *Strided::make(kBytes - 7, {}, 8)}),
  };
  std::uint64_t batch = 100;
  for (const ByteStream& lie : lies) {
    peer->send(message(WriteMessage{++batch, segment, kLong, lie}));
    expect_refusal(batch, Code::kInvalidArgument, "of segment \"both\"; it has 65536 bytes");
    peer->send(message(ReadMessage{++batch, segment, kLong, 77, lie}));
    expect_refusal(batch, Code::kInvalidArgument, "of segment \"both\"; it has 65536 bytes");
  }
  EXPECT_TRUE(memory.is_untouched());
  EXPECT_EQ(owner->statistics().refused_batches, 2 * lies.size());
  expect_empty();
}

TEST_F(LyingCaller, ThatHasNoAccessIsRefused) {
  greet();
  const std::uint64_t read = open("read"), write = open("write");
  peer->send(message(WriteMessage{1, read, kLong, flat(0, 8)}));
  expect_refusal(1, Code::kPermission, "segment \"read\" is not open for writing");
  peer->send(message(ReadMessage{2, write, kLong, 77, flat(0, 8)}));
  expect_refusal(2, Code::kPermission, "segment \"write\" is not open for reading");
  peer->send(message(ReadMessage{3, read + 1, kLong, 77, flat(0, 8)}));
  expect_refusal(3, Code::kStale, "no such segment");
  peer->send(message(OpenMessage{4, "other"}));
  expect_refusal(4, Code::kNotFound, "has no segment \"other\"");
  EXPECT_TRUE(secret.is_untouched());
}

TEST_F(LyingCaller, ThatUsesANumberTwiceIsRefused) {
  greet();
  const std::uint64_t segment = open("both");
  peer->send(message(WriteMessage{5, segment, kLong, flat(0, 8)}));
  ASSERT_TRUE(receive<WindowMessage>(*peer));
  peer->send(message(WriteMessage{5, segment, kLong, flat(8, 8)}));
  expect_refusal(5, Code::kBadInput, "came twice");
  peer->send(message(CancelBatchMessage{5}));
  expect_empty();
}

TEST_F(LyingCaller, ThatKeepsManyBatchesOpenIsRefusedAtALimit) {
  greet();
  const std::uint64_t segment = open("both");
  for (std::uint64_t i = 0; i < 4096; ++i) {
    peer->send(message(WriteMessage{i + 1, segment, kLong, flat(0, 8)}));
    ASSERT_TRUE(receive<WindowMessage>(*peer));
  }
  peer->send(message(WriteMessage{5000, segment, kLong, flat(0, 8)}));
  expect_refusal(5000, Code::kBusy, "4096 batches of this peer");
  peer.reset();
  expect_empty();
}

TEST_F(LyingCaller, ThatWritesMoreThanItsWindowTakesOrLaterChangesNothing) {
  greet();
  const std::uint64_t segment = open("both");
  peer->send(message(WriteMessage{1, segment, kLong, flat(kBytes - 8, 8)}));
  const auto window = receive<WindowMessage>(*peer);
  ASSERT_TRUE(window);
  const auto chunk = [&](std::uint64_t total, std::uint64_t offset, std::size_t bytes) {
    return ChunkFrame{.window = window->window,
                      .total = total,
                      .offset = offset,
                      .payload = Bytes(bytes, std::byte{0x11})}
        .encoded();
  };
  peer->send(chunk(16, 0, 16));
  ASSERT_TRUE(peer->receive(FrameType::kEnd));
  peer->send(chunk(8, 4, 8));
  ASSERT_TRUE(peer->receive(FrameType::kEnd));
  EXPECT_TRUE(memory.is_untouched());
  expect_empty();
  peer->send(chunk(8, 0, 8));
  ASSERT_TRUE(peer->receive(FrameType::kEnd));
  EXPECT_TRUE(memory.is_untouched());
}

TEST_F(LyingCaller, WhoseNoticesAreNotReadIsDisconnected) {
  greet();
  open("both");
  for (int i = 0; i < 5000; ++i) peer->send(message(NoticeMessage{"x"}));
  EXPECT_TRUE(peer->is_closed());
  EXPECT_EQ(owner->notices().size(), 4096u);
}

TEST_F(LyingCaller, OfAnotherKindIsNotServed) {
  peer.emplace(RawPeer::connect(owner->addresses().front()));
  peer->send(hello_of("rank", ++incarnation, {{"model", "x"}}, "owner"));
  peer->send(reads_of());
  peer->send(message(OpenMessage{1, "both"}));
  EXPECT_FALSE(peer->receive(FrameType::kMessage, 200));
}

TEST_F(LyingCaller, MutatedFramesDoNoHarm) {
  constexpr std::uint64_t kMutations = 2000;
  std::uint64_t written = 0;
  for (std::uint64_t seed = 0; seed < kMutations; ++seed) {
    SCOPED_TRACE(seed);
    FrameMutator mutator(base::mix64(seed + 1));
    const std::uint64_t which = mutator.rng().below(5);  // hello, open, write, chunk, read
    peer.emplace(RawPeer::connect(owner->addresses().front()));
    const auto send = [&](std::uint64_t i, const Bytes& bytes) {
      return peer->send(i == which ? mutator.change(bytes) : bytes);
    };
    const bool has_begun = send(0, encode(hello_of("liar", ++incarnation, kFacts, "owner"), 0)) &&
                           peer->send(reads_of()) &&
                           send(1, encode(message(OpenMessage{1, "both"}), 0));
    const auto opened = has_begun ? receive<OpenedMessage>(*peer, which < 2 ? 10 : 5000)
                                  : std::optional<OpenedMessage>();
    if (opened) {
      const ByteStream places = *Strided::make(64, {{4, 512}}, 256);
      send(2, encode(message(WriteMessage{2, opened->segment, kSecond, places}), 0));
      if (const auto window = receive<WindowMessage>(*peer, which <= 2 ? 10 : 5000)) {
        send(3,
             ChunkFrame{
                 .window = window->window, .total = 1024, .payload = Bytes(1024, std::byte{0x11})}
                 .encoded());
        written += peer->receive(FrameType::kTaken, which <= 3 ? 10 : 5000).has_value();
      }
      send(4, encode(message(ReadMessage{3, opened->segment, kSecond, 77, places}), 0));
      (void)peer->receive(10);
    }
    peer.reset();
    ASSERT_TRUE(memory.is_rest_untouched());
    ASSERT_TRUE(secret.is_untouched());
  }
  expect_empty();
  EXPECT_GT(written, kMutations / 10);
  greet();
  EXPECT_NE(open("both"), 0u);
}

// --- An endpoint, its owner, and a process that says it is the owner -------------------------------------

TEST(Impostor, OfAnOwnerTakesNoPlaceOfIt) {
  Guarded memory;
  TransferEndpoint owner =
      *TransferEndpoint::open({.name = "owner", .listen = {"tcp:127.0.0.1:0"}});
  TransferEndpoint other =
      *TransferEndpoint::open({.name = "other", .listen = {"tcp:127.0.0.1:0"}});
  std::vector<std::byte> right(kBytes, std::byte{0x11});
  ASSERT_TRUE(owner.register_memory("kv", right, SegmentAccess::kReadWrite));
  RawPeer impostor = RawPeer::connect(other.addresses().front());
  const auto says = [&](RawPeer& peer, std::uint64_t incarnation) {
    peer.send(hello_of("owner", incarnation, kFacts));
    peer.send(reads_of());
    peer.send(message(NoticeMessage{"of the impostor"}));
    peer.send(Frame{FrameType::kPing, {}});
    EXPECT_TRUE(peer.receive(FrameType::kPong));
  };
  says(impostor, 77);  // before the owner is called
  // Without an address, only a peer that was called is the owner.
  EXPECT_EQ(other.open({"owner", {}}, "kv", kSecond).error().code, Code::kInvalidArgument);
  const Segment segment = *other.open({"owner", owner.addresses()}, "kv", kLong);
  EXPECT_EQ(segment.bytes, kBytes);
  RawPeer second = RawPeer::connect(other.addresses().front());
  says(second, 78);  // and after that
  for (std::uint64_t number = 0; number < 32; ++number) {
    second.send(message(OpenedMessage{number, 66, 8, SegmentAccess::kReadWrite}));
    second.send(message(RefusedMessage{number, Error::make(Code::kStale, "no")}));
    second.send(message(WindowMessage{number, number}));
    second.send(message(CancelBatchMessage{number}));
  }
  const std::vector<TransferDescriptor> all = {{{0, {}, kBytes}, {0, {}, kBytes}}};
  for (int i = 0; i < 8; ++i) {
    const BatchId batch = *other.read(segment.id, memory.inside(), all);
    EXPECT_EQ(other.wait(batch, kLong)->state, BatchState::kDone);
    EXPECT_TRUE(std::ranges::equal(memory.inside(), right));
    other.release(batch);
  }
  ASSERT_TRUE(other.notify("owner", "to the owner"));
  const std::vector<Notice> heard = owner.notices(kLong);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].text, "to the owner");
  EXPECT_FALSE(heard[0].is_called);
  ASSERT_TRUE(owner.notify("other", "of the owner"));
  std::vector<Notice> notices;
  while (notices.size() < 3) {
    for (Notice& notice : other.notices(kLong)) notices.push_back(std::move(notice));
  }
  for (const Notice& notice : notices)
    EXPECT_EQ(notice.is_called, notice.text == "of the owner") << notice.text;
}

// --- The other one, and an owner that lies -------------------------------------------------------------

class LyingOwner : public ::testing::Test {
 protected:
  LyingOwner() {
    Result<TransferEndpoint> opened = TransferEndpoint::open({.name = "other"});
    if (!opened) ADD_FAILURE() << opened.error().message;
    other.emplace(*std::move(opened));
  }
  // @param answer  to the request to open
  Result<Segment> open(const std::function<SegmentMessage(std::uint64_t)>& answer,
                       std::uint64_t timeout_ns = kLong) {
    std::thread owner([&] {
      peer = listener.accept();
      if (!peer) return;
      peer->send(hello_of("liar", 1, kFacts));
      peer->send(reads_of());
      const auto asked = receive<OpenMessage>(*peer);
      if (asked) peer->send(message(answer(asked->request)));
    });
    Result<Segment> opened = other->open({"liar", {listener.address()}}, "kv", timeout_ns);
    owner.join();
    return opened;
  }
  static SegmentMessage yes(std::uint64_t request) {
    return OpenedMessage{request, 55, kBytes, SegmentAccess::kReadWrite};
  }

  Guarded memory;
  RawListener listener;
  std::optional<RawPeer> peer;
  std::optional<TransferEndpoint> other;
  const std::vector<TransferDescriptor> some = {{{64, {{4, 512, {}}}, 256}, {0, {}, 1024}}};
};

TEST_F(LyingOwner, ThatAnswersAnotherRequestHasNotAnswered) {
  const auto opened = open([](std::uint64_t request) { return yes(request + 1); }, kSecond / 5);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kTimeout);
}

TEST_F(LyingOwner, ThatSendsMoreOrElsewhereThanItWasAskedForWritesNothing) {
  const auto segment = open(yes);
  ASSERT_TRUE(segment) << segment.error().message;
  const std::vector<std::function<void(ChunkFrame&)>> lies = {
      [](ChunkFrame& c) { c.offset = 1; },
      [](ChunkFrame& c) { c.offset = ~std::uint64_t{0}; },
      [](ChunkFrame& c) { c.payload.resize(1025); },
      [](ChunkFrame& c) { c.payload.resize(1 << 20); },
  };
  for (const auto& lie : lies) {
    const BatchId batch = *other->read(segment->id, memory.inside(), some);
    const auto asked = receive<ReadMessage>(*peer);
    ASSERT_TRUE(asked);
    EXPECT_EQ(asked->segment, 55u);
    EXPECT_EQ(asked->places.bytes(), 1024u);
    ChunkFrame chunk{
        .window = asked->window, .total = 1024, .payload = Bytes(1024, std::byte{0x11})};
    lie(chunk);
    peer->send(chunk.encoded());
    const BatchStatus status = *other->wait(batch, kLong);
    EXPECT_EQ(status.state, BatchState::kFailed);
    EXPECT_EQ(status.error.code, Code::kInvalidArgument) << status.error.message;
    EXPECT_TRUE(receive<CancelBatchMessage>(*peer));
  }
  EXPECT_TRUE(memory.is_untouched());
  // The right answer, after all of these.
  const BatchId batch = *other->read(segment->id, memory.inside(), some);
  const auto asked = receive<ReadMessage>(*peer);
  ASSERT_TRUE(asked);
  peer->send(
      ChunkFrame{.window = asked->window, .total = 1024, .payload = Bytes(1024, std::byte{0x11})}
          .encoded());
  EXPECT_EQ(other->wait(batch, kLong)->state, BatchState::kDone);
  EXPECT_EQ(std::count(memory.bytes.begin(), memory.bytes.end(), std::byte{0x11}), 1024);
  EXPECT_TRUE(memory.is_rest_untouched());
}

TEST_F(LyingOwner, ThatGivesWindowsForOtherBatchesGetsNothing) {
  const auto segment = open(yes);
  ASSERT_TRUE(segment) << segment.error().message;
  const BatchId read = *other->read(segment->id, memory.inside(), some);
  ASSERT_TRUE(receive<ReadMessage>(*peer));
  const auto number = static_cast<std::uint64_t>(read);
  for (const std::uint64_t batch : {number, number + 1000, std::uint64_t{0}, ~std::uint64_t{0}})
    peer->send(message(WindowMessage{batch, 77}));
  const BatchId write = *other->write(segment->id, memory.inside(), some);
  const auto asked = receive<WriteMessage>(*peer);
  ASSERT_TRUE(asked);
  // Twice: the second one is ignored.
  peer->send(message(WindowMessage{asked->batch, 78}));
  peer->send(message(WindowMessage{asked->batch, 79}));
  const auto chunk = peer->receive(FrameType::kChunk);
  ASSERT_TRUE(chunk);
  BodyReader body(chunk->body);
  const std::uint64_t push = body.word();
  EXPECT_EQ(body.word(), 78u);
  EXPECT_FALSE(peer->receive(FrameType::kChunk, 100));
  peer->send(Frame{FrameType::kTaken, BodyWriter().word(push).word(0).word(1024).word(0).take()});
  EXPECT_EQ(other->wait(write, kLong)->state, BatchState::kDone);
  EXPECT_EQ(other->status(read)->state, BatchState::kRunning);
  EXPECT_TRUE(memory.is_untouched());
}

TEST_F(LyingOwner, ThatSaysItsSegmentIsLargerRefusesItself) {
  const auto segment = open([](std::uint64_t request) {
    return OpenedMessage{request, 55, ~std::uint64_t{0}, SegmentAccess::kReadWrite};
  });
  ASSERT_TRUE(segment) << segment.error().message;
  const BatchId batch =
      *other->read(segment->id, memory.inside(),
                   std::vector<TransferDescriptor>{{{0, {}, 8}, {std::uint64_t{1} << 60, {}, 8}}});
  const auto asked = receive<ReadMessage>(*peer);
  ASSERT_TRUE(asked);
  peer->send(message(RefusedMessage{asked->batch, Error::make(Code::kInvalidArgument, "no")}));
  const BatchStatus status = *other->wait(batch, kLong);
  EXPECT_EQ(status.state, BatchState::kFailed);
  EXPECT_STREQ(status.error.message, "no");
  EXPECT_TRUE(memory.is_untouched());
}

}  // namespace
}  // namespace cachalot::transfer

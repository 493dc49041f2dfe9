// A channel and a server over plain memory: order, credit, long and bad messages, incarnations.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "testing/rpc/test_mailboxes.h"

namespace cachalot::rpc {
namespace {

using memory::DomainKind;
using memory::Line;

constexpr std::uint32_t kClients = 3;
constexpr Ask kYes{};
constexpr Ask kNo{.status = static_cast<std::uint16_t>(Code::kNotFound)};
constexpr Ask long_ask(std::uint32_t lines, std::uint32_t answer_lines) {
  return {.lines = lines, .answer_lines = answer_lines, .is_plain = 0};
}

class NoWaiter final : public Waiter {
 public:
  void wait(std::uint32_t) override {}
};

class Mailbox : public testing::TestWithParam<DomainKind> {
 protected:
  Mailbox()
      : domain_(GetParam() == DomainKind::kCoherent ? memory::make_coherent_domain()
                                                    : memory::make_noncoherent_domain()),
        lines_(kClients * kTestMailboxLines),
        region_(test_region(*domain_, lines_.data())),
        server_(region_, kClients) {}

  TestPlace place(std::uint32_t client, std::uint32_t incarnation = 1) const {
    return {client, incarnation, kMostRingLines, !domain_->writes_whole_lines()};
  }
  TestClient open(const TestPlace& place) {
    server_.open(place);
    return client(place);
  }
  TestClient client(const TestPlace& place) { return {region_, place, waiter_, clock_}; }

  // The line with this number in a client's ring of requests or responses, as it lies in memory.
  Line& request_line(std::uint32_t client, std::uint64_t number) {
    return lines_[client * kTestMailboxLines + number % kMostRingLines];
  }
  Line& response_line(std::uint32_t client, std::uint64_t number) {
    return lines_[client * kTestMailboxLines + kMostRingLines + number % kMostRingLines];
  }
  // A writer into a client's request ring that need not keep the format.
  RingWriter raw_requests(const TestPlace& place) {
    return {region_.salted(request_salt(place.incarnation)), place.request_ring(), kMostRingLines};
  }
  // Polls both ends until the client has no request without answer; at most so many rounds.
  bool finish(TestClient& client, int rounds = 1000) {
    for (; rounds > 0 && client.channel().outstanding() != 0; --rounds) {
      server_.poll();
      client.poll();
    }
    EXPECT_EQ(client.fault(), "");
    EXPECT_EQ(server_.fault(), "");
    EXPECT_EQ(client.channel().malformed(), 0u);
    return client.channel().outstanding() == 0;
  }

  std::unique_ptr<memory::Domain> domain_;
  std::vector<Line> lines_;
  memory::SealedRegion region_;
  TestServer server_;
  NoWaiter waiter_;
  base::SteadyClock clock_;
};

TEST_P(Mailbox, AnswersOneRequestAfterOnePollOfEachSide) {
  TestClient client = open(place(1));
  client.send(kYes);
  EXPECT_EQ(server_.poll(), 1u);
  EXPECT_EQ(client.poll(), 1u);
  EXPECT_EQ(client.channel().outstanding(), 0u);
  EXPECT_EQ(client.fault(), "");
}

TEST_P(Mailbox, SendsWhatIsStagedWithTheNextPollOrFlush) {
  TestClient client = open(place(1));
  for (int i = 0; i < 10; ++i) client.stage(long_ask(5, 1));
  client.poll();
  for (int i = 0; i < 20; ++i) server_.poll();
  EXPECT_EQ(server_.taken(1), 10u);
  client.stage(kYes);
  EXPECT_EQ(server_.poll(), 0u);
  client.channel().flush();
  EXPECT_EQ(server_.poll(), 1u);
  EXPECT_TRUE(finish(client));
}

TEST_P(Mailbox, CarriesMessagesOfAllLengthsThroughManyLapsOfTheRing) {
  TestClient client = open(place(2));
  for (std::uint32_t lines = 1; lines <= kMaxMessageLines; ++lines) {
    for (const std::uint32_t answer_lines : {1u, lines, kMaxMessageLines + 1 - lines}) {
      client.send(long_ask(lines, answer_lines));
      ASSERT_TRUE(finish(client)) << lines << " lines, answer of " << answer_lines;
    }
  }
  EXPECT_EQ(client.answered(), 3 * kMaxMessageLines);
}

TEST_P(Mailbox, AnswersOfOneStatusShareALineAndStillCount) {
  TestClient client = open(place(0));
  for (int i = 0; i < 100; ++i) client.send(kYes);
  std::uint32_t polls = 0;
  while (server_.taken(0) < 100) server_.poll(), ++polls;
  EXPECT_LE(polls, 7u) << "the window doubles: 1, 2, 4, ... lines";
  for (std::uint64_t line = 1; line <= polls; ++line) {
    EXPECT_EQ(response_line(0, line).words[0], line);
  }
  EXPECT_EQ(response_line(0, polls + 1).words[0], 0u) << "more than a line a batch";
  EXPECT_TRUE(finish(client));
  EXPECT_EQ(client.answered(), 100u);
}

TEST_P(Mailbox, AnswersOfDifferentKindsKeepTheirOrder) {
  TestClient client = open(place(0));
  for (int i = 0; i < 20; ++i) {
    client.send(kYes);
    client.send(kYes);
    client.send(kNo);
    client.send(long_ask(1, 3));
    client.send(kNo);
    client.send(long_ask(2, 1));
  }
  EXPECT_TRUE(finish(client));
  EXPECT_EQ(client.answered(), 120u);
}

TEST_P(Mailbox, GivesNoCreditFor129RequestsAndGivesItBackWithTheAnswers) {
  TestClient client = open(place(0));
  for (std::uint32_t i = 0; i < kMaxOutstanding; ++i) {
    ASSERT_TRUE(client.can_send(kYes)) << i;
    client.send(kYes);
  }
  EXPECT_FALSE(client.can_send(kYes));
  while (server_.taken(0) < 1) server_.poll();
  EXPECT_FALSE(client.can_send(kYes)) << "handled, but the answer is not read";
  EXPECT_EQ(client.poll(), 1u);
  EXPECT_TRUE(client.can_send(kYes));
  client.send(kYes);
  EXPECT_FALSE(client.can_send(kYes));
  EXPECT_TRUE(finish(client));
}

TEST_P(Mailbox, AMalformedHeadIsRefusedAndCostsItsSenderThatLineOnly) {
  for (const int bad_lines : {0, 65, 255}) {
    const auto incarnation = static_cast<std::uint32_t>(bad_lines + 1);
    const TestPlace at = place(0, incarnation);
    server_.open(at);
    TestClient other = open(place(1, incarnation));
    RingWriter requests = raw_requests(at);
    RequestHead head{};
    head.lines = static_cast<std::uint8_t>(bad_lines);
    const std::uint64_t before = server_.server().malformed();
    requests.write(memory::to_line(head));
    other.send(kYes);
    EXPECT_EQ(server_.poll(), 1u) << "the other client's";
    EXPECT_EQ(server_.server().malformed(), before + 1);
    EXPECT_EQ(other.poll(), 1u);
    const auto answer = memory::as<ResponseHead>(response_line(0, 1));
    EXPECT_EQ(answer.status, static_cast<std::uint16_t>(Code::kInvalidArgument));
    EXPECT_EQ(answer.request, 1u);
    EXPECT_EQ(answer.answered, 1u);
    EXPECT_TRUE(region_.salted(response_salt(incarnation, kTestEpoch))
                    .checks(response_line(0, 1), place(0).response_ring() + 64));
    // What follows is a request again.
    Ask ask{.tag = tag_of(incarnation, 1)};
    head.op = kAskOp;
    head.lines = 1;
    head.epoch = kTestEpoch;
    store_payload(head.payload, ask);
    fill_noise(head.payload, ask.tag, 0, sizeof ask);
    requests.write(memory::to_line(head));
    EXPECT_EQ(server_.poll(), 1u);
    EXPECT_EQ(server_.fault(), "");
    EXPECT_EQ(server_.server().malformed(), before + 1);
  }
}

TEST_P(Mailbox, AMalformedHeadBehindGoodRequestsIsAnsweredAfterThem) {
  TestClient client = open(place(0));
  for (int i = 0; i < 8; ++i) client.send(kYes);
  RequestHead bad{};
  for (std::uint64_t line = 9; line < 12; ++line) {  // the client has not written these
    Line raw = memory::to_line(bad);
    raw.words[0] = line;
    region_.salted(request_salt(1)).publish(line * 64, raw);
  }
  while (server_.poll() != 0) continue;
  while (server_.server().malformed() < 3) server_.poll();
  EXPECT_EQ(server_.taken(0), 8u);
  EXPECT_EQ(client.poll() + client.poll() + client.poll() + client.poll(), 8u);
  EXPECT_EQ(client.fault(), "");
}

TEST_P(Mailbox, AnIncompleteMessageDelaysNobodyElse) {
  TestClient slow = open(place(0)), quick = open(place(1));
  slow.send(kYes);
  slow.send(long_ask(10, 2));
  slow.send(kNo);
  const Line missing = request_line(0, 7);
  request_line(0, 7) = Line{};
  for (int i = 1; i <= 50; ++i) {
    quick.send(long_ask(3, 1));
    ASSERT_TRUE(finish(quick, 5));
    slow.poll();
  }
  EXPECT_EQ(slow.answered(), 1u);
  EXPECT_EQ(server_.taken(0), 1u);
  request_line(0, 7) = missing;
  EXPECT_TRUE(finish(slow, 5));
  EXPECT_EQ(slow.answered(), 3u);
}

TEST_P(Mailbox, AnIncompleteAnswerIsDeliveredOnceItIsWhole) {
  TestClient client = open(place(0));
  client.send(kYes);
  client.send(long_ask(1, 9));
  client.send(kYes);
  while (server_.taken(0) < 3) server_.poll();
  const Line missing = response_line(0, 6);
  response_line(0, 6) = Line{};
  for (int i = 0; i < 20; ++i) client.poll();
  EXPECT_EQ(client.answered(), 1u);
  response_line(0, 6) = missing;
  EXPECT_TRUE(finish(client, 5));
}

TEST_P(Mailbox, ANewIncarnationSeesNothingOfTheOneBefore) {
  for (std::uint32_t incarnation = 1; incarnation < 20; ++incarnation) {
    TestClient before = client(place(0, incarnation));
    for (int i = 0; i < 30; ++i) before.send(long_ask(1 + i % 5, 1));  // these get no answer
    TestClient now = open(place(0, incarnation + 1));
    for (int i = 0; i < 10; ++i) server_.poll();
    ASSERT_EQ(server_.taken(0), 0u);
    now.send(long_ask(2, 2));
    server_.poll();
    server_.poll();
    EXPECT_EQ(before.poll(), 0u) << "an answer to the new one";
    ASSERT_TRUE(finish(now));
    server_.server().close(0);
    EXPECT_FALSE(server_.server().is_open(0));
    now.send(kYes);
    EXPECT_EQ(server_.poll(), 0u) << "closed";
  }
}

TEST_P(Mailbox, AnAnswerOfAnotherEpochIsNotTaken) {
  TestPlace later = place(0);
  later.epoch = kTestEpoch + 1;
  TestClient client = this->client(later);
  RingWriter old_keeper(region_.salted(response_salt(1, kTestEpoch)), later.response_ring(),
                        kMostRingLines);
  client.send(kYes);
  ResponseHead head{};
  head.request = 1;
  head.lines = head.answered = 1;
  old_keeper.write(memory::to_line(head));
  EXPECT_EQ(client.poll(), 0u);
}

TEST_P(Mailbox, AnAnswerThatDoesNotFitItsRequestAnswersNothing) {
  struct Bad {
    std::uint32_t request;
    std::uint8_t answered;
  };
  for (const Bad bad : {Bad{1, 0}, Bad{2, 1}, Bad{3, 2}, Bad{3, 3}, Bad{1, 255}}) {
    const auto at = place(0, 100u * bad.request + bad.answered);
    TestClient client = this->client(at);
    RingWriter keeper(region_.salted(response_salt(at.incarnation, kTestEpoch)), at.response_ring(),
                      kMostRingLines);
    client.send(kYes);
    client.send(kYes);
    ResponseHead head{};
    head.request = bad.request;
    head.answered = bad.answered;
    head.lines = 1;
    keeper.write(memory::to_line(head));
    EXPECT_EQ(client.poll(), 0u);
    EXPECT_EQ(client.channel().outstanding(), 2u);
    EXPECT_EQ(client.channel().malformed(), 1u);
    head.request = 2;
    head.answered = 2;
    keeper.write(memory::to_line(head));
    EXPECT_EQ(client.poll(), 2u);
    EXPECT_EQ(client.fault(), "");
  }
}

TEST_P(Mailbox, WaitingEndsWithTheAnswerTheDeadlineOrTheKeeper) {
  TestClient client = open(place(0));
  client.send(kYes);
  EXPECT_EQ(client.wait(0, 0).error().code, Code::kTimeout);
  server_.poll();
  EXPECT_TRUE(client.wait(0, 0));
  client.send(kYes);
  class NoSink final : public AnswerSink {
    void on_answer(const Answer&) override {}
  } sink;
  const Status gone = client.channel().wait_until(
      sink, [] { return Channel::kNever; }, [] { return false; }, [] { return true; });
  EXPECT_EQ(gone.error().code, Code::kNoKeeper);
}

TEST_P(Mailbox, RingsASleepingKeeperWhenRequestsGoOutAndWhileItWaits) {
  DoorbellWords words{1, 0};
  TestClient client(region_, place(0), waiter_, clock_, Doorbell(&words));
  client.stage(kYes);
  EXPECT_EQ(words.state.load(), 1u) << "nothing went out";
  client.channel().flush();
  EXPECT_EQ(words.state.load(), 0u);
  words.state = 1;
  EXPECT_EQ(client.wait(0, 0).error().code, Code::kTimeout);
  EXPECT_EQ(words.state.load(), 0u) << "a ring that was missed is rung again";
}

TEST_P(Mailbox, AHandlerMayCloseAnyMailbox) {
  class Closer final : public RequestHandler {
   public:
    explicit Closer(const memory::SealedRegion& region) : server(region, kClients) {}
    void on_requests(std::uint32_t client, std::span<const Message> messages) override {
      ++batches;
      server.answer(client, 0, static_cast<std::uint32_t>(messages.size()));
      for (std::uint32_t i = 0; i < kClients; ++i) server.close(i);
    }
    Server server;
    int batches = 0;
  } closer(region_);
  std::vector<TestClient> clients;
  for (std::uint32_t i = 0; i < kClients; ++i) {
    closer.server.open(i, place(i).mailbox(), {});
    clients.push_back(client(place(i)));
    clients.back().send(kYes);
  }
  EXPECT_EQ(closer.server.poll(closer), 1u);
  EXPECT_EQ(closer.batches, 1);
  EXPECT_EQ(clients[0].poll(), 1u) << "close() writes what is still held";
  EXPECT_EQ(closer.server.poll(closer), 0u);
}

TEST_P(Mailbox, RingsASleepingClientWhenItsAnswersAreWritten) {
  DoorbellWords words{1, 0};
  server_.open(place(0), Doorbell(&words));
  TestClient client = this->client(place(0));
  server_.poll();
  EXPECT_EQ(words.state.load(), 1u) << "nothing to tell";
  for (const Ask& ask : {kYes, long_ask(1, 2)}) {
    words.state = 1;
    client.send(ask);
    server_.poll();
    EXPECT_EQ(words.state.load(), 0u);
    EXPECT_EQ(client.poll(), 1u);
  }
  server_.poll();
  words.state = 1;
  server_.poll();
  EXPECT_EQ(words.state.load(), 1u);
}

TEST_P(Mailbox, TellsOnWhichCoreItRunsBeforeItRings) {
  class CoreWaiter final : public Waiter {
   public:
    void wait(std::uint32_t) override {}
    void tell_core() override { ++told; }
    int told = 0;
  } waiter;
  TestClient client(region_, place(0), waiter, clock_);
  client.poll();
  client.channel().flush();
  EXPECT_EQ(waiter.told, 0) << "nothing went out";
  client.send(kYes);
  EXPECT_EQ(waiter.told, 1);
}

TEST_P(Mailbox, TheServerKnowsOnWhichCoresTheLastAnswersWereAwaited) {
  DoorbellWords words[2];
  std::vector<TestClient> clients;
  for (std::uint32_t i = 0; i < 2; ++i) {
    Doorbell(&words[i]).tell_core(static_cast<int>(i));
    server_.open(place(i), Doorbell(&words[i]));
    clients.push_back(client(place(i)));
  }
  const auto cores = [&] {
    const Server& server = server_.server();
    return std::pair(server.has_just_answered_on(0), server.has_just_answered_on(1));
  };
  EXPECT_EQ(cores(), std::pair(false, false));
  clients[0].send(kYes);
  server_.poll();
  EXPECT_EQ(cores(), std::pair(true, false));
  server_.poll();
  EXPECT_EQ(cores(), std::pair(true, false)) << "a poll that finds nothing changes nothing";
  clients[1].send(kYes);
  server_.poll();
  EXPECT_EQ(cores(), std::pair(false, true));
  for (TestClient& one : clients) one.send(kYes);
  server_.poll();
  EXPECT_EQ(cores(), std::pair(true, true));
}

INSTANTIATE_TEST_SUITE_P(Domains, Mailbox,
                         testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent),
                         [](const auto& domain) { return memory::domain_name(domain.param); });

}  // namespace
}  // namespace cachalot::rpc

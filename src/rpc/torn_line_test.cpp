// Rule R5 where a peer's stores may tear: what checks is acted upon only if a second read is equal.
#include <gtest/gtest.h>

#include <vector>

#include "base/clock.h"
#include "memory/forwarding_domain.h"
#include "testing/rpc/test_mailboxes.h"

namespace cachalot::rpc {
namespace {

using memory::Line;
using memory::Rule;

// Real memory, except that one line is read as something else a number of times: a torn line whose
// CRC is right by chance.
class TornDomain final : public memory::ForwardingDomain {
 public:
  void show(const void* at, const Line& instead, int times) {
    at_ = at;
    instead_ = instead;
    times_ = times;
  }
  bool writes_whole_lines() const override { return false; }
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override {
    ForwardingDomain::gather_lines(from, count, lines);
    for (std::size_t i = 0; i < count; ++i) {
      if (from[i] == at_ && times_ > 0) {
        lines[i] = instead_;
        --times_;
      }
    }
  }

 private:
  const void* at_ = nullptr;
  Line instead_{};
  int times_ = 0;
};

class NoWaiter final : public Waiter {
 public:
  void wait(std::uint32_t) override {}
};

class Recorder final : public AnswerSink {
 public:
  void on_answer(const Answer& answer) override { statuses.push_back(answer.status); }
  std::vector<std::uint16_t> statuses;
};

class TornLine : public testing::Test {
 protected:
  TornLine() : lines_(kTestMailboxLines), region_(test_region(domain_, lines_.data())) {}

  // The line with this number and status, right in every respect, but never sent.
  Line answer_line(std::uint64_t number, std::uint32_t request, std::uint16_t status) const {
    ResponseHead head{};
    head.sequence = number;
    head.request = request;
    head.status = status;
    head.lines = head.answered = 1;
    Line line = memory::to_line(head);
    region_.salted(response_salt(1, kTestEpoch)).seal(line, place_.response_ring() + number * 64);
    return line;
  }

  TestPlace split() const {
    TestPlace place = place_;
    place.splits_lines = true;
    return place;
  }

  TornDomain domain_;
  std::vector<Line> lines_;
  memory::SealedRegion region_;
  TestPlace place_;
  NoWaiter waiter_;
  base::SteadyClock clock_;
};

class TornRequest : public TornLine {
 protected:
  // The client has written three requests; the second is read as one that asks for something else.
  void tear(int times) {
    for (int i = 0; i < 3; ++i) client_.send({});
    server_.poll();  // the first; two lines are read next
    Ask other{.tag = 4711};
    auto head = memory::as<RequestHead>(lines_[2]);
    store_payload(head.payload, other);
    Line torn = memory::to_line(head);
    region_.salted(request_salt(1)).seal(torn, 2 * 64);
    domain_.show(&lines_[2], torn, times);
  }

  TestServer server_{region_, 1};
  TestClient client_{region_, split(), waiter_, clock_};
};

TEST_F(TornRequest, IsNotActedUponWhereTheClientSplitsLines) {
  server_.open(split());
  tear(1);
  EXPECT_EQ(server_.poll(), 0u);
  EXPECT_EQ(server_.poll() + server_.poll(), 2u) << "read equal twice, and taken";
  EXPECT_EQ(server_.fault(), "");
}

TEST_F(TornRequest, LeavesWhatIsBeforeItAlone) {
  server_.open(split());
  for (int i = 0; i < 4; ++i) client_.send({});
  server_.poll();  // 1
  domain_.show(&lines_[3], lines_[3], 0);
  auto head = memory::as<RequestHead>(lines_[3]);
  store_payload(head.payload, Ask{.tag = 4711});
  Line torn = memory::to_line(head);
  region_.salted(request_salt(1)).seal(torn, 3 * 64);
  domain_.show(&lines_[3], torn, 1);
  EXPECT_EQ(server_.poll(), 1u) << "2, but not 3";
  EXPECT_EQ(server_.poll() + server_.poll(), 2u);
  EXPECT_EQ(server_.fault(), "");
}

TEST_F(TornRequest, IsActedUponWhereTheClientSaysThatItsLinesAreWhole) {
  server_.open(place_);
  tear(1);
  EXPECT_EQ(server_.poll(), 2u);
  EXPECT_NE(server_.fault(), "");
}

class TornAnswer : public TornLine {
 protected:
  void answer_three() {
    RingWriter keeper(region_.salted(response_salt(1, kTestEpoch)), place_.response_ring(), 256);
    for (std::uint32_t i = 1; i <= 3; ++i) {
      channel_.post({kAskOp, 0, 1, i}, Line{});
      keeper.write(answer_line(i, i, 0));
    }
    EXPECT_EQ(channel_.poll(sink_), 1u);
    domain_.show(&lines_[256 + 2], answer_line(2, 2, 13), 1);
  }

  Recorder sink_;
  Channel channel_{region_, split().channel(), waiter_, clock_, Doorbell()};
};

TEST_F(TornAnswer, IsNotActedUponWhereTheKeeperSplitsLines) {
  answer_three();
  EXPECT_EQ(channel_.poll(sink_), 0u);
  EXPECT_EQ(channel_.poll(sink_) + channel_.poll(sink_), 2u);
  EXPECT_EQ(sink_.statuses, (std::vector<std::uint16_t>{0, 0, 0}));
}

TEST_F(TornAnswer, IsActedUponWhereTheKeeperSaysThatItsLinesAreWhole) {
  channel_ = Channel(region_, place_.channel(), waiter_, clock_, Doorbell());
  answer_three();
  EXPECT_EQ(channel_.poll(sink_), 2u);
  EXPECT_EQ(sink_.statuses, (std::vector<std::uint16_t>{0, 13, 0}));
}

#ifdef CACHALOT_RULE_SWITCHES
TEST_F(TornRequest, IsActedUponWhereTheRuleIsBroken) {
  domain_.break_rule(Rule::kR5ConfirmSplitLines);
  server_.open(split());
  tear(1);
  EXPECT_EQ(server_.poll(), 2u);
  EXPECT_NE(server_.fault(), "");
}

TEST_F(TornAnswer, IsActedUponWhereTheRuleIsBroken) {
  domain_.break_rule(Rule::kR5ConfirmSplitLines);
  answer_three();
  EXPECT_EQ(channel_.poll(sink_), 2u);
  EXPECT_EQ(sink_.statuses, (std::vector<std::uint16_t>{0, 13, 0}));
}
#endif

}  // namespace
}  // namespace cachalot::rpc

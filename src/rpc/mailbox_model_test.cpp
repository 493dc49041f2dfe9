// Random sequences of sends, polls and re-opens against a model: a queue of what was sent.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "testing/rpc/test_mailboxes.h"

namespace cachalot::rpc {
namespace {

class NoWaiter final : public Waiter {
 public:
  void wait(std::uint32_t) override {}
};

enum class Kind : std::uint8_t { kSend, kPollClient, kPollServer, kReopen };

struct Command {
  Kind kind = Kind::kSend;
  Ask ask;
  std::uint32_t times = 1;
};

void showValue(const Command& command, std::ostream& out) {
  constexpr const char* kNames[] = {"send", "poll_client", "poll_server", "reopen"};
  out << kNames[static_cast<int>(command.kind)] << " x" << command.times;
  if (command.kind != Kind::kSend) return;
  out << " (" << command.ask.lines << " lines, answer " << command.ask.answer_lines << ", status "
      << command.ask.status << (command.ask.is_plain != 0 ? ", plain)" : ")");
}

rc::Gen<Command> any_command() {
  return rc::gen::map(
      rc::gen::tuple(rc::gen::weightedElement<Kind>({{10, Kind::kSend},
                                                     {8, Kind::kPollClient},
                                                     {8, Kind::kPollServer},
                                                     {1, Kind::kReopen}}),
                     rc::gen::inRange<std::uint32_t>(1, kMaxMessageLines + 1),
                     rc::gen::inRange<std::uint32_t>(1, kMaxMessageLines + 1),
                     rc::gen::arbitrary<bool>(), rc::gen::inRange<std::uint16_t>(0, 3),
                     rc::gen::inRange<std::uint32_t>(1, 50), rc::gen::inRange(0, 4)),
      [](const auto& parts) {
        const auto& [kind, lines, answer_lines, is_plain, status, times, size] = parts;
        Command command{kind, {}, times};
        // Three of four are small: else credit is all that is ever tested.
        command.ask.lines = size == 0 ? lines : 1 + lines % 3;
        command.ask.is_plain = is_plain ? 1 : 0;
        command.ask.answer_lines = is_plain ? 1 : size == 1 ? answer_lines : 1 + answer_lines % 2;
        command.ask.status = status;
        return command;
      });
}

// The model: what is sent and not answered, and how much room that takes.
struct Model {
  std::deque<Ask> unanswered;
  std::uint64_t sent = 0;

  std::uint32_t lines() const {
    std::uint32_t sum = 0;
    for (const Ask& ask : unanswered) sum += ask.lines;
    return sum;
  }
  std::uint32_t answer_lines() const {
    std::uint32_t sum = 0;
    for (const Ask& ask : unanswered) sum += ask.answer_lines;
    return sum;
  }
  bool has_credit(const Ask& ask, std::uint32_t ring_lines) const {
    return unanswered.size() < kMaxOutstanding && lines() + ask.lines <= ring_lines &&
           answer_lines() + ask.answer_lines <= ring_lines;
  }
  std::uint64_t answered() const { return sent - unanswered.size(); }
};

class Sut {
 public:
  Sut(memory::Domain& domain, std::uint32_t ring_lines)
      : lines_(kTestMailboxLines),
        region_(test_region(domain, lines_.data())),
        server_(region_, 1),
        place_{0, 0, ring_lines, !domain.writes_whole_lines()} {
    reopen();
  }

  void run(const Command& command) {
    for (std::uint32_t i = 0; i < command.times; ++i) {
      if (command.kind == Kind::kSend) send(command.ask);
      if (command.kind == Kind::kPollServer) poll_server();
      if (command.kind == Kind::kPollClient) poll_client();
      if (command.kind == Kind::kReopen && i == 0) reopen();
    }
    RC_ASSERT(server_.fault().empty());
    RC_ASSERT(client_->fault().empty());
    RC_ASSERT(client_->channel().malformed() == 0u);
    RC_ASSERT(client_->channel().outstanding() == model_.unanswered.size());
    RC_ASSERT(server_.taken(0) >= model_.answered());
    RC_ASSERT(server_.taken(0) <= model_.sent);
  }

  // Whatever is left gets its answer, each pair of polls bringing at least one nearer.
  void finish() {
    for (std::size_t left = 3 * model_.unanswered.size() + 10; left > 0; --left) {
      poll_server();
      poll_client();
    }
    RC_ASSERT(model_.unanswered.empty());
    RC_ASSERT(server_.server().malformed() == 0u);
  }

 private:
  void send(const Ask& ask) {
    const bool can = client_->can_send(ask);
    RC_ASSERT(can == model_.has_credit(ask, place_.ring_lines));
    if (!can) return;
    if (model_.sent % 5 == 0) {
      client_->send(ask);
    } else {
      client_->stage(ask);
    }
    model_.unanswered.push_back(ask);
    ++model_.sent;
  }

  void poll_server() {
    const std::uint64_t before = server_.taken(0);
    const std::uint32_t requests = server_.poll();
    RC_ASSERT(server_.taken(0) == before + requests);
  }

  void poll_client() {
    const std::uint32_t answers = client_->poll();
    RC_ASSERT(model_.answered() + answers <= server_.taken(0));
    model_.unanswered.erase(model_.unanswered.begin(), model_.unanswered.begin() + answers);
  }

  void reopen() {
    ++place_.incarnation;
    server_.server().close(0);
    server_.open(place_);
    client_ = std::make_unique<TestClient>(region_, place_, waiter_, clock_);
    model_ = {};
  }

  std::vector<memory::Line> lines_;
  memory::SealedRegion region_;
  TestServer server_;
  TestPlace place_;
  NoWaiter waiter_;
  base::SteadyClock clock_;
  std::unique_ptr<TestClient> client_;
  Model model_;
};

void check_commands(memory::Domain& domain) {
  const auto ring_lines = *rc::gen::element<std::uint32_t>(64, 128, 256);
  const auto commands = *rc::gen::container<std::vector<Command>>(any_command());
  Sut sut(domain, ring_lines);
  for (const Command& command : commands) sut.run(command);
  sut.finish();
}

RC_GTEST_PROP(MailboxModel, AgreesWithAQueueInCoherentMemory, ()) {
  check_commands(*memory::make_coherent_domain());
}

RC_GTEST_PROP(MailboxModel, AgreesWithAQueueInNoncoherentMemory, ()) {
  check_commands(*memory::make_noncoherent_domain());
}

}  // namespace
}  // namespace cachalot::rpc

// One server and four clients in threads of their own, on however few cores there are.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "testing/rpc/test_mailboxes.h"

namespace cachalot::rpc {
namespace {

using memory::DomainKind;

constexpr std::uint32_t kClients = 4;
constexpr std::uint64_t kCalls = 20'000;
constexpr std::uint64_t kLonely = 1'000;  // of these: one at a time
constexpr std::uint64_t kHangNs = 60'000'000'000;

class MailboxThreads : public testing::TestWithParam<DomainKind> {
 protected:
  MailboxThreads()
      : domain_(GetParam() == DomainKind::kCoherent ? memory::make_coherent_domain()
                                                    : memory::make_noncoherent_domain()),
        lines_(kClients * kTestMailboxLines),
        region_(test_region(*domain_, lines_.data())) {}

  TestPlace place(std::uint32_t client) const {
    return {client, client + 1, kMostRingLines, !domain_->writes_whole_lines()};
  }

  void serve(TestServer& server) {
    HostWaiter waiter(Doorbell(&server_words_), options([&](int core) {
                        return server.server().has_just_answered_on(core);
                      }));
    for (std::uint32_t idle = 0; clients_left_.load() != 0;) {
      if (server.poll() != 0) {
        idle = 0;
      } else {
        waiter.wait(idle++);
      }
    }
  }

  // Returns what went wrong.
  std::string call(std::uint32_t number) {
    const Doorbell keeper(&server_words_);
    HostWaiter waiter(Doorbell(&client_words_[number]),
                      options([keeper](int core) { return keeper.owner_ran_on(core); }));
    base::SteadyClock clock;
    TestClient client(region_, place(number), waiter, clock, keeper);
    base::Rng rng(number + 1);
    Status status;
    while (status && client.sent() < kCalls) {
      const Ask ask = random_ask(rng);
      const bool is_lonely = client.sent() < kLonely;
      const auto most = static_cast<std::uint32_t>(is_lonely ? 0 : rng.below(kMaxOutstanding));
      if (is_lonely || rng.chance(0.1)) status = client.wait(most, kHangNs);
      while (status && !client.can_send(ask)) {
        status = client.wait(client.channel().outstanding() - 1, kHangNs);
      }
      if (status) client.stage(ask);
    }
    if (status) status = client.wait(0, kHangNs);
    --clients_left_;
    Doorbell(&server_words_).ring();
    if (!status) return status.error().message;
    return client.answered() == kCalls ? client.fault() : "answers are missing";
  }

  HostWaiter::Options options(std::function<bool(int)> peer_ran_on) {
    HostWaiter::Options options;
    options.peer_ran_on = std::move(peer_ran_on);
    if (says_one_core_) options.own_core = [] { return 0; };
    return options;
  }

  void run_all();

  std::unique_ptr<memory::Domain> domain_;
  std::vector<memory::Line> lines_;
  memory::SealedRegion region_;
  DoorbellWords server_words_;
  DoorbellWords client_words_[kClients];
  std::atomic<std::uint32_t> clients_left_{kClients};
  bool says_one_core_ = false;
};

void MailboxThreads::run_all() {
  TestServer server(region_, kClients);
  for (std::uint32_t i = 0; i < kClients; ++i) server.open(place(i), Doorbell(&client_words_[i]));
  std::string faults[kClients];
  std::vector<std::thread> threads;
  threads.emplace_back([&] { serve(server); });
  for (std::uint32_t i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] { faults[i] = call(i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.fault(), "");
  EXPECT_EQ(server.server().malformed(), 0u);
  for (std::uint32_t i = 0; i < kClients; ++i) {
    EXPECT_EQ(faults[i], "") << "client " << i;
    EXPECT_EQ(server.taken(i), kCalls);
  }
}

TEST_P(MailboxThreads, FourClientsFinishTwentyThousandCallsEach) {
  run_all();
}

// Wherever they run: each sleeps as soon as it has nothing to do, and all depends on rings.
TEST_P(MailboxThreads, FourClientsFinishWhereAllOfThemThinkTheyShareACore) {
  says_one_core_ = true;
  run_all();
}

INSTANTIATE_TEST_SUITE_P(Domains, MailboxThreads,
                         testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent),
                         [](const auto& domain) { return memory::domain_name(domain.param); });

}  // namespace
}  // namespace cachalot::rpc

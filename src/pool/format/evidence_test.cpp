// What a keeper takes for the exit of a process: of one in its own namespaces only.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>

#include "os/child.h"
#include "os/file_descriptor.h"
#include "os/process.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr int kNotAllowed = 77;

bool write_to(const char* path, const std::string& text) {
  const os::FileDescriptor fd(open(path, O_WRONLY | O_CLOEXEC));
  return fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// This process, of one thread, sees a boot that was 5000 s earlier.
bool enter_time_namespace() {
  if (unshare(CLONE_NEWTIME) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWTIME) != 0) return false;
  if (!write_to("/proc/self/timens_offsets", "boottime 5000 0\n")) return false;
  const os::FileDescriptor made(open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC));
  return made && setns(made.get(), CLONE_NEWTIME) == 0;
}

bool may_enter_time_namespaces() {
  Result<os::Child> child =
      os::Child::start([] { return enter_time_namespace() ? 0 : kNotAllowed; });
  return child && child->wait()->ok();
}

TEST(TimeNamespace, IsNamedAndShiftsStartTimes) {
  if (!may_enter_time_namespaces()) GTEST_SKIP() << "this process may not make time namespaces";
  const auto outside = os::namespaces();
  ASSERT_TRUE(outside) << outside.error().message;
  EXPECT_NE(outside->pid, 0u);
  EXPECT_NE(outside->time, 0u);
  Result<os::Child> child = os::Child::start([&] {
    if (!enter_time_namespace()) return kNotAllowed;
    const auto inside = os::namespaces();
    return inside && inside->pid == outside->pid && inside->time != outside->time ? 0 : 1;
  });
  ASSERT_TRUE(child);
  EXPECT_TRUE(child->wait()->ok());
}

// A keeper in this process and a client in a process of its own, which holds blocks and waits.
class EvidenceTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBlocks = 4;

  void SetUp() override {
    if (!may_enter_time_namespaces()) GTEST_SKIP() << "this process may not make time namespaces";
    path_ = "/dev/shm/cachalot_evidence_test." + std::to_string(getpid());
    Result<Pool> pool = create_small_pool(path_);
    ASSERT_TRUE(pool) << pool.error().message;
    pool_.emplace(*std::move(pool));
  }
  void TearDown() override {
    keeper_.reset();
    if (pool_) {
      EXPECT_TRUE(pool_->remove());
    }
  }

  void serve(std::uint64_t suspect_after_ns) {
    KeeperOptions options;
    options.suspect_after_ns = suspect_after_ns;
    Result<PoolKeeper> keeper = pool_->serve(options);
    ASSERT_TRUE(keeper) << keeper.error().message;
    keeper_.emplace(*std::move(keeper));
  }
  void start_client(bool in_time_namespace) {
    Result<os::Child> client = os::Child::start([this, in_time_namespace] {
      if (in_time_namespace && !enter_time_namespace()) return kNotAllowed;
      Result<Pool> pool = Pool::open({path_});
      if (!pool) return 1;
      ClientOptions options = in_namespace("evidence");
      options.timeout_ns = 60'000'000'000;
      Result<PoolClient> attached = pool->attach(options, 0);
      if (!attached) return 2;
      const Result<Reservation> reservation = attached->client().reserve(kBlocks);
      if (!reservation) return 3;
      for (;;) pause();
    });
    ASSERT_TRUE(client) << client.error().message;
    client_.emplace(*std::move(client));
    serve_until(
        [this] { return view().incarnation != 0 && count(KeeperCounter::kGranted) >= kBlocks; });
  }

  ViewLine view() const {
    ViewLine line{};
    pool_->access().region.read_as(pool_->access().layout.view_line(0, 0), line);
    return line;
  }
  bool is_open() const { return (view().flags & kViewOpen) != 0; }
  std::uint64_t count(KeeperCounter counter) { return keeper_->keeper().counters()[counter]; }

  template <typename Condition>
  void serve_until(const Condition& condition) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up);
      if (!was_killed_) {
        ASSERT_FALSE(client_->wait_for(0)->has_value()) << client_->wait()->text();
      }
      keeper_->poll_or_wait();
    }
  }
  void kill_client() {
    was_killed_ = true;
    client_->send(SIGKILL);
    ASSERT_EQ(client_->wait()->signal, SIGKILL);
  }

  std::string path_;
  std::optional<Pool> pool_;
  std::optional<PoolKeeper> keeper_;
  std::optional<os::Child> client_;
  bool was_killed_ = false;
};

TEST_F(EvidenceTest, AClientInATimeNamespaceIsNotTakenForExited) {
  serve(3600'000'000'000);
  start_client(true);
  // Its heartbeat is looked at where its process is.
  serve_until([this] { return view().heartbeat >= 3 || !is_open(); });
  EXPECT_TRUE(is_open());
  EXPECT_GE(count(KeeperCounter::kGranted), kBlocks);
}

TEST_F(EvidenceTest, AClientThatDiedInATimeNamespaceHoldsItsBlocks) {
  serve(2'000'000'000);
  start_client(true);
  kill_client();
  serve_until([this] { return !is_open(); });
  EXPECT_EQ(view().flags & (kViewHeld | kViewSuspected), kViewHeld | kViewSuspected);
  EXPECT_GE(count(KeeperCounter::kQuarantined), kBlocks);
}

TEST_F(EvidenceTest, AClientThatDiedInTheKeepersTimeNamespaceFreesThem) {
  serve(0);
  start_client(false);
  kill_client();
  serve_until([this] { return !is_open(); });
  EXPECT_EQ(view().flags & kViewHeld, 0u);
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
}

}  // namespace
}  // namespace cachalot::pool

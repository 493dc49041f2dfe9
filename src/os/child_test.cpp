#include "os/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "os/process.h"

namespace cachalot::os {
namespace {

int wait_for_signal() {
  for (;;) pause();
}

TEST(Child, ReportsItsExitCode) {
  auto child = Child::start([] { return 3; });
  ASSERT_TRUE(child) << child.error().message;
  const auto status = child->wait();
  ASSERT_TRUE(status);
  EXPECT_FALSE(status->ok());
  EXPECT_EQ(status->text(), "exit code 3");
  EXPECT_EQ(child->wait()->text(), "exit code 3");  // the same the second time
}

TEST(Child, ReportsTheSignalThatEndedIt) {
  auto child = Child::start(wait_for_signal);
  ASSERT_TRUE(child);
  child->send(SIGTERM);
  const auto status = child->wait();
  EXPECT_FALSE(status->ok());
  EXPECT_EQ(status->text(), "signal 15 (TERM)");
}

TEST(Child, AWaitWithATimeoutSaysThatItStillRuns) {
  auto child = Child::start(wait_for_signal);
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait_for(0)->has_value(), false);
  EXPECT_EQ(child->wait_for(5)->has_value(), false);
  child->send(SIGKILL);
  const auto status = child->wait_for(20'000);
  ASSERT_TRUE(status && status->has_value());
  EXPECT_EQ((*status)->signal, SIGKILL);
}

TEST(Child, WithoutADescriptorAWaitWithATimeoutSaysSo) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  auto child = Child::start([] { return 3; });
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(child) << child.error().message;
  const auto status = child->wait_for(20'000);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  EXPECT_NE(std::string(status.error().message).find("no file descriptor to wait on: Too many"),
            std::string::npos)
      << status.error().message;
  EXPECT_EQ(child->wait()->exit_code, 3);
}

TEST(Child, IsKilledAndReapedByItsDestructor) {
  std::uint32_t pid = 0;
  {
    auto child = Child::start(wait_for_signal);
    ASSERT_TRUE(child);
    const Child moved = *std::move(child);
    pid = static_cast<std::uint32_t>(moved.pid());
    ASSERT_TRUE(process_start_time(pid));
  }
  EXPECT_EQ(process_start_time(pid).error().code, Code::kNotFound);
}

TEST(Child, DoesNotOutliveItsParent) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  auto parent = Child::start([&] {
    close(pipe_ends[0]);
    auto grandchild =
        Child::start([&] { return write(pipe_ends[1], "x", 1) == 1 ? wait_for_signal() : 1; });
    if (!grandchild) return 1;
    return wait_for_signal();
  });
  ASSERT_TRUE(parent);
  close(pipe_ends[1]);
  char byte = 0;
  ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
  parent->send(SIGKILL);
  ASSERT_TRUE(parent->wait());
  // End of file: no writer is left.
  EXPECT_EQ(read(pipe_ends[0], &byte, 1), 0);
  close(pipe_ends[0]);
}

}  // namespace
}  // namespace cachalot::os

#include "os/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <utility>

#include "os/child.h"
#include "os/shared_file.h"

namespace cachalot::os {
namespace {

class FileLockTest : public ::testing::Test {
 protected:
  int fd() const { return file_->fd(); }
  bool is_free(std::uint64_t offset) const { return FileLock::try_lock(fd(), offset).ok(); }

  // A child that locks by `lock` and then waits to be killed. Returns when the lock is held.
  static Result<Child> child_that_holds(const std::function<bool()>& lock) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    Result<Child> child = Child::start([&] {
      const char answer = lock() ? 'y' : 'n';
      if (write(ready[1], &answer, 1) != 1) return 1;
      for (;;) pause();
    });
    close(ready[1]);
    char answer = 0;
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    close(ready[0]);
    return child;
  }

  Result<SharedFile> file_ = SharedFile::create("memfd:locks", 4096);
};

TEST_F(FileLockTest, TwoLocksOfOneProcessExcludeEachOther) {
  const auto held = FileLock::try_lock(fd(), 5);
  ASSERT_TRUE(held) << held.error().message;
  const auto second = FileLock::try_lock(fd(), 5);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_EQ(second.error().detail, 5u);
  EXPECT_TRUE(is_free(4));
  EXPECT_TRUE(is_free(6));
}

TEST_F(FileLockTest, EndsWithItsScopeAndMovesWithItsOwner) {
  {
    auto held = FileLock::try_lock(fd(), 1);
    ASSERT_TRUE(held);
    const FileLock moved = *std::move(held);
    EXPECT_EQ(moved.offset(), 1u);
    EXPECT_FALSE(is_free(1));
  }
  EXPECT_TRUE(is_free(1));
}

TEST_F(FileLockTest, ClosingAnotherDescriptorOfTheFileKeepsTheLock) {
  const auto held = FileLock::try_lock(fd(), 1);
  ASSERT_TRUE(held);
  close(dup(fd()));
  { const auto again = SharedFile::open(file_->path()); }
  EXPECT_FALSE(is_free(1));
}

TEST_F(FileLockTest, ExcludesAnotherProcessUntilThatIsKilled) {
  std::optional<FileLock> held;
  auto child = child_that_holds([&] {
    if (auto lock = FileLock::try_lock(fd(), 9)) held.emplace(*std::move(lock));
    return held.has_value();
  });
  ASSERT_TRUE(child);
  EXPECT_FALSE(is_free(9));
  EXPECT_EQ(*who_holds(fd(), 9), kUnknownPid);
  child->send(SIGKILL);
  ASSERT_EQ(child->wait()->signal, SIGKILL);
  EXPECT_TRUE(is_free(9));
  EXPECT_EQ(*who_holds(fd(), 9), std::nullopt);
}

TEST_F(FileLockTest, UnlockedItIsFreeAlsoWhereAForkedChildSharesIt) {
  auto held = FileLock::try_lock(fd(), 3);
  ASSERT_TRUE(held);
  auto child = Child::start([] {
    for (;;) pause();
    return 0;
  });
  ASSERT_TRUE(child);
  EXPECT_FALSE(is_free(3));
  held->unlock();
  EXPECT_TRUE(is_free(3));
  const auto next = FileLock::try_lock(fd(), 3);
  held->unlock();
  EXPECT_FALSE(is_free(3)) << "it is the next one's now";
}

// A process that takes a lock, forks, and is killed; its child lives on.
TEST_F(FileLockTest, OneThatForkedChildrenLeaveEndsWithWhoTookItWhateverEndsThat) {
  int ready[2], end[2], gone[2];
  ASSERT_TRUE(pipe(ready) == 0 && pipe(end) == 0 && pipe(gone) == 0);
  auto child = Child::start([&] {
    const auto held = FileLock::try_lock(fd(), 9, Forks::kLeave);
    if (!held) return 1;
    if (fork() == 0) {
      char byte = 'y';
      close(end[1]);
      close(gone[0]);
      (void)!write(ready[1], &byte, 1);
      (void)!read(end[0], &byte, 1);  // until the other end is closed
      _exit(0);
    }
    for (;;) pause();
  });
  ASSERT_TRUE(child);
  close(gone[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_FALSE(is_free(9));
  child->send(SIGKILL);
  ASSERT_EQ(child->wait()->signal, SIGKILL);
  EXPECT_TRUE(is_free(9)) << "the grandchild has it";
  close(end[1]);
  EXPECT_EQ(read(gone[0], &byte, 1), 0);  // when the grandchild has ended
  for (const int fd : {ready[0], ready[1], end[0], gone[0]}) close(fd);
}

TEST_F(FileLockTest, OneThatForkedChildrenLeaveIsNotTheirsToEnd) {
  auto held = FileLock::try_lock(fd(), 3, Forks::kLeave);
  auto many = FileLockSet::open(fd());
  ASSERT_TRUE(held && many && many->try_lock(4));
  auto child = Child::start([&] {
    // The next open() reuses their numbers.
    const int first = open("/dev/null", O_RDONLY | O_CLOEXEC), second = dup(first);
    held->unlock();
    if (many->try_lock(5)) return 1;
    many->unlock(4);
    { const FileLock gone = *std::move(held); }
    { const FileLockSet gone = *std::move(many); }
    if (fcntl(first, F_GETFD) < 0 || fcntl(second, F_GETFD) < 0) return 2;
    return FileLock::try_lock(fd(), 6, Forks::kLeave) ? 0 : 3;
  });
  ASSERT_TRUE(child);
  EXPECT_TRUE(child->wait()->ok()) << child->wait()->text();
  EXPECT_FALSE(is_free(3) || is_free(4));
  *held = *FileLock::try_lock(fd(), 7, Forks::kLeave);
  EXPECT_TRUE(is_free(3));
  EXPECT_FALSE(is_free(7));
}

TEST_F(FileLockTest, OneThatForkedChildrenLeaveIsNotToBeEndedByTheChildOfABareClone) {
  auto held = FileLock::try_lock(fd(), 3, Forks::kLeave);
  ASSERT_TRUE(held);
  const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (child == 0) {
    held->unlock();
    { const FileLock gone = *std::move(held); }
    _exit(0);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(is_free(3)) << "its parent holds it";
}

// As it is for a moment between fork() and the child's first instruction, or after a bare clone().
TEST_F(FileLockTest, OneThatForkedChildrenLeaveIsUnlockedAtItsEndWhoeverSharesIt) {
  int shared = -1;
  {
    const int next = dup(fd());  // the number that the lock's description gets
    close(next);
    const auto held = FileLock::try_lock(fd(), 3, Forks::kLeave);
    shared = dup(next);
    EXPECT_FALSE(is_free(3));
  }
  EXPECT_TRUE(is_free(3));
  close(shared);
}

TEST_F(FileLockTest, NamesTheHolderOfAnOldPosixLock) {
  auto child = child_that_holds([&] {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_len = 1;
    return fcntl(fd(), F_SETLK, &range) == 0;
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(*who_holds(fd(), 0), child->pid());
}

TEST_F(FileLockTest, OffsetsPastTheEndAreGoodAndPastTheRangeAreNot) {
  EXPECT_TRUE(is_free((std::uint64_t{1} << 63) - 2));
  for (const std::uint64_t offset : {(std::uint64_t{1} << 63) - 1, ~std::uint64_t{0}}) {
    EXPECT_EQ(FileLock::try_lock(fd(), offset).error().code, Code::kInvalidArgument);
    EXPECT_EQ(who_holds(fd(), offset).error().code, Code::kInvalidArgument);
  }
  EXPECT_EQ(FileLock::try_lock(-1, 0).error().code, Code::kNotFound);
}

TEST_F(FileLockTest, ASetHoldsManyBytesAndExcludesOtherSetsAndLocks) {
  auto mine = FileLockSet::open(fd());
  auto other = FileLockSet::open(fd());
  ASSERT_TRUE(mine && other);
  const std::uint64_t far = (std::uint64_t{1} << 62) + 3;
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{2}, far})
    EXPECT_TRUE(mine->try_lock(offset));
  EXPECT_TRUE(mine->try_lock(2)) << "a set does not exclude itself";
  const Status second = other->try_lock(far);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_FALSE(is_free(1));
  mine->unlock(2);
  mine->unlock(77);
  EXPECT_TRUE(is_free(2));
  EXPECT_FALSE(is_free(1));
  EXPECT_TRUE(other->try_lock(2));
  EXPECT_EQ(mine->try_lock(std::uint64_t{1} << 63).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot::os

#include "os/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  auto child = Child::start([&] {
    const auto held = FileLock::try_lock(fd(), 9);
    const char ok = held ? 'y' : 'n';
    if (write(ready[1], &ok, 1) != 1) return 1;
    for (;;) pause();
  });
  ASSERT_TRUE(child);
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_FALSE(is_free(9));
  EXPECT_EQ(*who_holds(fd(), 9), kUnknownPid);
  child->send(SIGKILL);
  ASSERT_EQ(child->wait()->signal, SIGKILL);
  EXPECT_TRUE(is_free(9));
  EXPECT_EQ(*who_holds(fd(), 9), std::nullopt);
  close(ready[0]);
  close(ready[1]);
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

TEST_F(FileLockTest, NamesTheHolderOfAnOldPosixLock) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  auto child = Child::start([&] {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_len = 1;
    const char ok = fcntl(fd(), F_SETLK, &range) == 0 ? 'y' : 'n';
    if (write(ready[1], &ok, 1) != 1) return 1;
    for (;;) pause();
  });
  ASSERT_TRUE(child);
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_EQ(*who_holds(fd(), 0), child->pid());
  close(ready[0]);
  close(ready[1]);
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
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{2}, far}) EXPECT_TRUE(mine->try_lock(offset));
  EXPECT_TRUE(mine->try_lock(2)) << "a set does not exclude itself";
  const Status second = other->try_lock(far);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_FALSE(is_free(1));
  EXPECT_TRUE(*other->is_held_elsewhere(2));
  EXPECT_FALSE(*mine->is_held_elsewhere(2));
  mine->unlock(2);
  mine->unlock(77);
  EXPECT_TRUE(is_free(2));
  EXPECT_FALSE(is_free(1));
  EXPECT_TRUE(other->try_lock(2));
  EXPECT_EQ(mine->try_lock(std::uint64_t{1} << 63).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace cachalot::os

#include "vmm/memfd/page_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "os/child.h"
#include "os/memory.h"

namespace cachalot::vmm {
namespace {

constexpr std::uint64_t kChunk = PageStore::kChunkBytes;
constexpr auto kSources = {PageSource::kHugetlb, PageSource::kTmpfs, PageSource::kCollapse,
                           PageSource::kSmall};

// On tmpfs everywhere; whether with huge pages is up to the machine.
PageStoreOptions options_of(PageSource source) {
  return {.source = source, .tmpfs_directory = "/dev/shm"};
}

std::uint64_t file_bytes(const PageStore& store) {
  struct stat status {};
  EXPECT_EQ(fstat(store.fd(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(PageStore, OpensASourceOrSaysThatThisMachineHasItNot) {
  for (const PageSource source : kSources) {
    const auto store = PageStore::open(options_of(source));
    if (store) {
      EXPECT_EQ((*store)->source(), source);
      EXPECT_NE((*store)->description().find(page_source_name(source)), std::string::npos);
      EXPECT_EQ(file_bytes(**store), 0u) << "left over from looking at the first chunk";
    } else {
      // No reserve of huge pages is no space for them.
      const bool expected =
          store.error().code == Code::kUnsupported || store.error().code == Code::kNoSpace;
      EXPECT_TRUE(expected) << store.error().message;
      EXPECT_NE(source, PageSource::kSmall);
    }
  }
}

// Not by what the store says: by the page table.
TEST(PageStore, ReportsThePagesThatTheKernelReports) {
  for (const PageSource source : kSources) {
    const auto store = PageStore::open(options_of(source));
    if (!store) continue;
    std::vector<std::uint64_t> offsets;
    for (int i = 0; i < 4; ++i) offsets.push_back(*(*store)->make(kChunk));
    const os::PageMode mode = (*store)->page_mode();
    std::uint64_t huge = 0;
    for (const std::uint64_t offset : offsets) huge += is_huge((*store)->fd(), offset);
    if (source == PageSource::kSmall) {
      EXPECT_EQ(mode, os::PageMode::kSmall);
      EXPECT_EQ(huge, 0u);
    } else if (source == PageSource::kHugetlb) {
      EXPECT_EQ(mode, os::PageMode::kHugetlb);
    } else {
      EXPECT_EQ(mode == os::PageMode::kTransparentHuge, huge == 4) << huge;
    }
  }
}

TEST(PageStore, MakesEveryPageAtOnceAndGivesAllOfThemBack) {
  for (const PageSource source : kSources) {
    const auto store = PageStore::open(options_of(source));
    if (!store) continue;
    const std::uint64_t one = *(*store)->make(kChunk), three = *(*store)->make(3 * kChunk);
    EXPECT_EQ(file_bytes(**store), 4 * kChunk) << page_source_name(source);
    EXPECT_TRUE((*store)->destroy(one, kChunk));
    EXPECT_EQ(file_bytes(**store), 3 * kChunk);
    EXPECT_TRUE((*store)->destroy(three, 3 * kChunk));
    EXPECT_EQ(file_bytes(**store), 0u);
  }
}

TEST(PageStore, WhatIsMadeInARowLiesInARowAndNoOffsetComesTwice) {
  const auto store = *PageStore::open({.source = PageSource::kSmall});
  const std::uint64_t first = *store->make(2 * kChunk);
  EXPECT_EQ(*store->make(kChunk), first + 2 * kChunk);
  EXPECT_TRUE(store->destroy(first, 3 * kChunk));
  EXPECT_EQ(*store->make(kChunk), first + 3 * kChunk);
}

TEST(PageStore, WithoutASourceTakesTheFirstThatGivesHugePages) {
  const auto store = PageStore::open({.hugetlb_bytes = ~std::uint64_t{0}});
  ASSERT_TRUE(store) << store.error().message;
  EXPECT_EQ((*store)->source() == PageSource::kCollapse,
            PageStore::open(options_of(PageSource::kCollapse)).ok());
}

TEST(PageStore, ADirectoryThatIsNotOnTmpfsIsAnErrorAlsoWhereOtherSourcesWork) {
  const auto missing = PageStore::open({.tmpfs_directory = "/dev/shm/cachalot-no-such-directory"});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  const auto other = PageStore::open({.tmpfs_directory = "/proc"});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::strstr(other.error().message, "/proc"), nullptr);
  EXPECT_NE(std::strstr(other.error().message, "tmpfs"), nullptr);
}

TEST(PageStore, MoreMemoryThanThereIsIsAnErrorBeforeAnythingIsTouched) {
  const auto store = *PageStore::open({.source = PageSource::kSmall});
  for (const std::uint64_t bytes : {std::uint64_t{1} << 50, (std::uint64_t{1} << 63) - kChunk}) {
    const auto made = store->make(bytes);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, Code::kNoSpace);
  }
  EXPECT_EQ(file_bytes(*store), 0u);
  EXPECT_TRUE(store->make(kChunk));
}

TEST(PageStore, LeavesTheSpareMemoryAlone) {
  const std::uint64_t available = os::available_memory().bytes;
  const std::uint64_t wanted = std::uint64_t{64} << 20;
  if (available < 4 * wanted) GTEST_SKIP() << available << " bytes of memory left";
  const auto store =
      PageStore::open({.source = PageSource::kSmall, .spare_bytes = available - wanted});
  if (!store) GTEST_SKIP() << "others took the memory meanwhile: " << store.error().message;
  Result<std::uint64_t> made = std::uint64_t{0};
  // Others may give memory back meanwhile: a gigabyte of it ends the loop.
  for (int i = 0; i < 512 && made; ++i) made = (*store)->make(kChunk);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kNoSpace);
  EXPECT_NE(std::strstr(made.error().message, "spared for others"), nullptr);
}

// The kernel answers with a signal that kills (SIGXFSZ).
TEST(PageStore, StaysWithinTheFileSizeLimitOfTheProcess) {
  auto child = os::Child::start([] {
    const rlimit limit{.rlim_cur = 4 * kChunk, .rlim_max = 4 * kChunk};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const auto store = PageStore::open({.source = PageSource::kSmall});
    if (!store) return 3;
    // The first chunk was looked at.
    for (int i = 0; i < 3; ++i) {
      if (!(*store)->make(kChunk)) return 4;
    }
    const auto made = (*store)->make(kChunk);
    return !made && made.error().code == Code::kNoSpace ? 0 : 5;
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait()->text(), "exit code 0");
}

}  // namespace
}  // namespace cachalot::vmm

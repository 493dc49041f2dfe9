#include "device_memory/memfd/page_store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "os/child.h"
#include "os/memory.h"

namespace cachalot::device_memory {
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
    std::vector<std::uint64_t> offsets(4);
    for (std::uint64_t& offset : offsets) offset = *(*store)->make(kChunk);
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

TEST(PageStore, CollapsesWhereTheKernelCan) {
  EXPECT_EQ(PageStore::open(options_of(PageSource::kCollapse)).ok(), kernel_collapses());
}

// Without addresses for a moment's mapping nothing can be collapsed; memory there is all the same.
TEST(PageStore, ReportsHandlesThatCameInSmallPages) {
  if (!kernel_collapses()) GTEST_SKIP() << "this kernel does not collapse pages";
  auto child = os::Child::start([] {
    const auto store = PageStore::open(options_of(PageSource::kCollapse));
    if (!store || !(*store)->make(kChunk)) return 1;
    if ((*store)->page_mode() != os::PageMode::kTransparentHuge) return 2;
    const rlimit no_addresses{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &no_addresses) != 0) return 3;
    if (!(*store)->make(kChunk)) return 4;
    if ((*store)->page_mode() != os::PageMode::kMixed) return 5;
    const rlimit addresses{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &addresses) != 0) return 6;
    const std::string text = (*store)->description();
    return text.find("1 of 2 handles in small pages") != std::string::npos ? 0 : 7;
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait()->text(), "exit code 0");
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

// In a child that can have no larger file: should a check be missing, it is the child that dies, and
// not what else runs on this machine.
int in_a_small_file(std::uint64_t limit_bytes, const std::function<int(PageStore&)>& body) {
  auto child = os::Child::start([&] {
    const rlimit limit{.rlim_cur = limit_bytes, .rlim_max = limit_bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 100;
    const auto store = PageStore::open({.source = PageSource::kSmall});
    return store ? body(**store) : 101;
  });
  EXPECT_TRUE(child);
  return child->wait()->exit_code;
}

TEST(PageStore, MoreMemoryThanThereIsIsAnErrorBeforeAnythingIsTouched) {
  EXPECT_EQ(
      in_a_small_file(
          std::uint64_t{64} << 20,
          [](PageStore& store) {
            for (const std::uint64_t bytes : {std::uint64_t{1} << 50, std::uint64_t{1} << 63}) {
              const auto made = store.make(bytes);
              if (made || made.error().code != Code::kNoSpace) return 1;
              if (std::strstr(made.error().message, "spared for others") == nullptr) return 2;
            }
            return file_bytes(store) == 0 && store.make(kChunk) ? 0 : 3;
          }),
      0);
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
  EXPECT_EQ(in_a_small_file(4 * kChunk,
                            [](PageStore& store) {
                              // The first chunk was looked at when the store was opened.
                              for (int i = 0; i < 3; ++i) {
                                if (!store.make(kChunk)) return 1;
                              }
                              const auto made = store.make(kChunk);
                              return !made && made.error().code == Code::kNoSpace ? 0 : 2;
                            }),
            0);
}

}  // namespace
}  // namespace cachalot::device_memory

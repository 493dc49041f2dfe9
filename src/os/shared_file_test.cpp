#include "os/shared_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "os/child.h"
#include "os/reserve.h"
#include "testing/os/shm_folder.h"

namespace cachalot::os {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = 1u << 20;

class SharedFileTest : public ShmFolder {};

std::string message(const Error& error) {
  return error.message;
}

TEST_F(SharedFileTest, TwoMappingsOfAFileSeeTheSameBytes) {
  const auto made = SharedFile::create(path("a"), 4 * kMiB);
  ASSERT_TRUE(made) << made.error().message;
  const auto opened = SharedFile::open(path("a"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->bytes(), 4 * kMiB);
  const auto one = made->map();
  const auto two = opened->map({.huge_pages = false, .populate = true});
  ASSERT_TRUE(one && two);
  EXPECT_NE(one->data(), two->data());
  one->data()[3 * kMiB] = std::byte{42};
  EXPECT_EQ(two->data()[3 * kMiB], std::byte{42});
  EXPECT_EQ(two->data()[0], std::byte{0});
}

TEST_F(SharedFileTest, MappingsAreAlignedToTwoMiB) {
  const auto file = SharedFile::create(path("a"), 4 * kMiB + 12345);
  ASSERT_TRUE(file);
  for (int i = 0; i < 8; ++i) {
    // Odd lengths, so that the kernel's own choice of address would not stay aligned.
    const auto mapping = file->map({}, 4097 * (i + 1));
    ASSERT_TRUE(mapping);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping->data()) % kMapAlignmentBytes, 0u);
    EXPECT_EQ(mapping->bytes(), 4097u * (i + 1));
  }
}

std::uint64_t address_space_pages() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  return pages;
}

TEST_F(SharedFileTest, AMappingGivesBackAllItsAddresses) {
  const auto file = SharedFile::create(path("a"), 4 * kMiB);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->map());  // what the first call allocates for itself
  const std::uint64_t before = address_space_pages();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(file->map());
  EXPECT_LT(address_space_pages(), before + 4 * kMiB / 4096);
}

TEST_F(SharedFileTest, CreateReservesEveryByte) {
  for (const bool huge : {false, true}) {
    const auto file =
        SharedFile::create(path(huge ? "huge" : "small"), 5 * kMiB + 4096, {.huge_pages = huge});
    ASSERT_TRUE(file) << file.error().message;
    struct stat status {};
    ASSERT_EQ(fstat(file->fd(), &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(5 * kMiB + 4096));
    EXPECT_GE(status.st_blocks * 512, static_cast<off_t>(5 * kMiB + 4096));
  }
}

TEST_F(SharedFileTest, HugePagesAreUsedWhereTheKernelCanAndReported) {
  const auto file = SharedFile::create(path("a"), 8 * kMiB);
  ASSERT_TRUE(file);
  const auto small = SharedFile::create(path("b"), 8 * kMiB, {.huge_pages = false});
  ASSERT_TRUE(small);
  const auto small_mapping = small->map({.huge_pages = false, .populate = true});
  ASSERT_TRUE(small_mapping);
  EXPECT_EQ(small_mapping->page_mode(), PageMode::kSmall);
  const auto mapping = file->map();
  ASSERT_TRUE(mapping);
  if (mapping->page_mode() == PageMode::kSmall) GTEST_SKIP() << "this kernel gives no huge pages";
  EXPECT_STREQ(page_mode_name(mapping->page_mode()), "transparent_huge");
}

TEST_F(SharedFileTest, CreatingTwiceIsBusyAndLeavesTheFirstAlone) {
  const auto first = SharedFile::create(path("a"), 2 * kMiB);
  ASSERT_TRUE(first);
  const auto second = SharedFile::create(path("a"), 4 * kMiB);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(message(second.error()).find(path("a")), std::string::npos);
  EXPECT_EQ(fs::file_size(path("a")), 2 * kMiB);
}

TEST_F(SharedFileTest, ImpossibleSizesAreRefusedAndLeaveNoFile) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1} << 63, ~std::uint64_t{0},
                                    (std::uint64_t{1} << 63) - 1}) {
    for (const std::string& name : {path("a"), std::string("memfd:a")}) {
      const auto file = SharedFile::create(name, bytes);
      ASSERT_FALSE(file);
      EXPECT_EQ(file.error().code, Code::kInvalidArgument) << bytes;
      EXPECT_NE(message(file.error()).find(std::to_string(bytes)), std::string::npos);
    }
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SharedFileTest, MoreThanThereIsIsNoSpaceAndLeavesNoFile) {
  const std::uint64_t wanted = std::uint64_t{1} << 50;
  for (const std::string& name : {path("a"), std::string("memfd:a")}) {
    const auto file = SharedFile::create(name, wanted);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, Code::kNoSpace) << file.error().message;
    EXPECT_NE(message(file.error()).find(std::to_string(wanted)), std::string::npos);
    EXPECT_NE(message(file.error()).find(std::to_string(file.error().detail)), std::string::npos);
    EXPECT_LT(file.error().detail, wanted);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SharedFileTest, AFullTmpfsIsNoSpaceAndLeavesNoFile) {
  if (!mount_here("tmpfs", "size=8m")) GTEST_SKIP() << "not allowed to mount";
  const auto fits = SharedFile::create(path("fits"), 4 * kMiB);
  ASSERT_TRUE(fits) << fits.error().message;
  const auto too_much = SharedFile::create(path("too_much"), 5 * kMiB);
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code, Code::kNoSpace);
  EXPECT_EQ(too_much.error().detail, 4 * kMiB);
  EXPECT_FALSE(fs::exists(path("too_much")));
  // Reserved is reserved: the neighbour's bytes can all be stored to.
  const auto mapping = fits->map();
  ASSERT_TRUE(mapping);
  std::memset(mapping->data(), 1, mapping->bytes());
}

TEST_F(SharedFileTest, ASparseFileOnAFullTmpfsFailsToPopulateInsteadOfKilling) {
  if (!mount_here("tmpfs", "size=4m")) GTEST_SKIP() << "not allowed to mount";
  const FileDescriptor sparse(::open(path("sparse").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(ftruncate(sparse.get(), 8 * kMiB), 0);
  const auto file = SharedFile::open(path("sparse"));
  ASSERT_TRUE(file);
  const auto mapping = file->map({.populate = true});
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error().code, Code::kNoSpace);
}

TEST_F(SharedFileTest, AFileSizeLimitIsAnErrorAndNoSignal) {
  auto child = Child::start([&] {
    const rlimit limit{kMiB, kMiB};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto file = SharedFile::create(path("a"), 2 * kMiB);
    return !file && file.error().code == Code::kNoSpace ? 0 : 1;
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait()->text(), "exit code 0");
}

TEST_F(SharedFileTest, HugetlbfsGivesReservedHugePages) {
  if (!mount_here("hugetlbfs", "pagesize=2M")) GTEST_SKIP() << "not allowed to mount";
  const auto odd = SharedFile::create(path("odd"), 3 * kMiB);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::kInvalidArgument);
  EXPECT_NE(message(odd.error()).find("not a multiple of the huge page"), std::string::npos);
  const auto file = SharedFile::create(path("a"), 4 * kMiB);
  if (!file) {
    EXPECT_EQ(file.error().code, Code::kNoSpace) << file.error().message;
    EXPECT_FALSE(fs::exists(path("a")));
    GTEST_SKIP() << "no huge pages: " << file.error().message;
  }
  {
    const auto mapping = file->map({.populate = true}, 3 * kMiB);  // not a whole page
    ASSERT_TRUE(mapping) << mapping.error().message;
    EXPECT_EQ(mapping->page_mode(), PageMode::kHugetlb);
    mapping->data()[3 * kMiB - 1] = std::byte{1};
  }
  EXPECT_TRUE(file->remove());
}

// A device that is not there must not become a file of the same name, which takes memory and ends with the machine.
TEST_F(SharedFileTest, AMissingDeviceIsNoFile) {
  for (const char* const path : {"/dev/dax9.9", "/dev/../dev/pmem9", "/dev/dax/../dax9.8"}) {
    const Result<SharedFile> file = SharedFile::create(path, 2u << 20, {});
    ASSERT_FALSE(file) << path;
    EXPECT_NE(std::string(file.error().message).find(path), std::string::npos)
        << file.error().message;
    EXPECT_NE(access(path, F_OK), 0) << path;
  }
}

TEST_F(SharedFileTest, AMissingDeviceIsNoFileByItsNameInTheWorkingDirectoryEither) {
  const fs::path before = fs::current_path();
  fs::current_path("/dev");
  const Result<SharedFile> file = SharedFile::create("dax9.7", 2u << 20, {});
  fs::current_path(before);
  ASSERT_FALSE(file);
  EXPECT_NE(std::string(file.error().message).find("dax9.7: no such device"), std::string::npos)
      << file.error().message;
  EXPECT_NE(access("/dev/dax9.7", F_OK), 0);
}

TEST_F(SharedFileTest, OpenSaysWhatIsWrongWithAPath) {
  std::ofstream(path("empty")).flush();
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  const std::pair<std::string, Code> cases[] = {
      {path("missing"), Code::kNotFound},    {folder_, Code::kInvalidArgument},
      {path("empty"), Code::kBadInput},      {path("fifo"), Code::kInvalidArgument},
      {"/dev/null", Code::kInvalidArgument}, {"", Code::kInvalidArgument},
      {"memfd:a", Code::kInvalidArgument},   {"shm:a/b", Code::kInvalidArgument},
      {"shm:", Code::kInvalidArgument},      {std::string("a\0b", 3), Code::kInvalidArgument},
  };
  for (const auto& [name, code] : cases) {
    const auto file = SharedFile::open(name);
    ASSERT_FALSE(file) << name;
    EXPECT_EQ(file.error().code, code) << name << ": " << file.error().message;
  }
  EXPECT_NE(message(SharedFile::open(folder_).error()).find("directory"), std::string::npos);
  EXPECT_EQ(SharedFile::create(folder_, kMiB).error().code, Code::kInvalidArgument);
  EXPECT_EQ(SharedFile::create("/dev/null", kMiB).error().code, Code::kInvalidArgument);
  EXPECT_EQ(SharedFile::create(path("no/folder"), kMiB).error().code, Code::kNotFound);
}

TEST_F(SharedFileTest, AFileOfAnotherUserIsAPermissionError) {
  ASSERT_TRUE(SharedFile::create(path("a"), kMiB, {.mode = 0600}));
  if (geteuid() != 0) GTEST_SKIP() << "needs to change the user";
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  auto child = Child::start([&] {
    if (setuid(65534) != 0) return 2;
    const auto file = SharedFile::open(path("a"));
    const auto made = SharedFile::create(path("b"), kMiB);
    return !file && file.error().code == Code::kPermission && !made &&
                   made.error().code == Code::kPermission
               ? 0
               : 1;
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait()->text(), "exit code 0");
}

TEST_F(SharedFileTest, AReadOnlyFileIsMappedForReadingOnly) {
  ASSERT_TRUE(SharedFile::create(path("a"), 2 * kMiB));
  const auto file = SharedFile::open(path("a"), Access::kReadOnly);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->map().error().code, Code::kPermission);
  const auto mapping = file->map({.populate = true, .read_only = true});
  ASSERT_TRUE(mapping) << mapping.error().message;
  EXPECT_EQ(mapping->data()[kMiB], std::byte{0});
}

TEST_F(SharedFileTest, ATruncatedFileIsNoticed) {
  const auto file = SharedFile::create(path("a"), 4 * kMiB);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->require_bytes(4 * kMiB));
  ASSERT_EQ(truncate(path("a").c_str(), kMiB), 0);
  const Status status = file->require_bytes(4 * kMiB);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kCorrupt);
  EXPECT_EQ(status.error().detail, kMiB);
}

TEST_F(SharedFileTest, MoreThanTheFileHasCannotBeMapped) {
  const auto file = SharedFile::create(path("a"), kMiB);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->map({}, kMiB + 1).error().code, Code::kInvalidArgument);
  EXPECT_EQ(file->map({}, ~std::uint64_t{0}).error().code, Code::kInvalidArgument);
}

TEST_F(SharedFileTest, AMemfdIsOpenedByItsPathAndCannotBeTruncated) {
  const auto made = SharedFile::create("memfd:pool", 2 * kMiB);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->kind(), FileKind::kMemfd);
  EXPECT_NE(ftruncate(made->fd(), 0), 0);
  const auto mapping = made->map();
  ASSERT_TRUE(mapping);
  mapping->data()[7] = std::byte{7};
  auto child = Child::start([&] {
    const auto opened = SharedFile::open(made->path());
    if (!opened || opened->kind() != FileKind::kMemfd) return 1;
    const auto own = opened->map();
    if (!own) return 2;
    own->data()[8] = own->data()[7];
    return opened->remove() ? 0 : 3;
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->wait()->text(), "exit code 0");
  EXPECT_EQ(mapping->data()[8], std::byte{7});
}

TEST_F(SharedFileTest, AShmNameIsAFileInDevShm) {
  const std::string name = "cachalot_os_test." + std::to_string(getpid());
  const auto made = SharedFile::create("shm:" + name, kMiB);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_TRUE(fs::exists("/dev/shm/" + name));
  EXPECT_TRUE(made->overlaps(*SharedFile::open("shm:" + name)));
  EXPECT_TRUE(made->remove());
  EXPECT_FALSE(fs::exists("/dev/shm/" + name));
  EXPECT_TRUE(made->remove());  // it is gone, as wished
}

TEST_F(SharedFileTest, RemoveLeavesAnotherFileOfTheSameNameAlone) {
  const auto file = SharedFile::create(path("a"), kMiB);
  ASSERT_TRUE(file);
  fs::rename(path("a"), path("b"));
  ASSERT_TRUE(SharedFile::create(path("a"), kMiB));
  EXPECT_TRUE(file->remove());
  EXPECT_TRUE(fs::exists(path("a")));
}

TEST_F(SharedFileTest, TrustedIsWhatThisUserOrRootOwnsAndNoOthersWriteTo) {
  const auto opens = [&](const char* name) {
    return SharedFile::open(path(name), Access::kReadWrite, Owners::kTrusted);
  };
  ASSERT_TRUE(SharedFile::create(path("a"), kMiB));
  fs::create_symlink("a", path("link"));
  for (const mode_t mode : {0600u, 0660u, 0664u}) {
    ASSERT_EQ(chmod(path("a").c_str(), mode), 0);
    EXPECT_TRUE(opens("a")) << mode;
    EXPECT_TRUE(opens("link")) << mode;
  }
  ASSERT_EQ(chmod(path("a").c_str(), 0666), 0);
  for (const char* name : {"a", "link"}) {
    const auto writable = opens(name);
    ASSERT_FALSE(writable);
    EXPECT_EQ(writable.error().code, Code::kPermission);
    EXPECT_NE(message(writable.error()).find("mode 0666"), std::string::npos)
        << message(writable.error());
    EXPECT_TRUE(SharedFile::open(path(name)));
  }
  const auto anonymous = SharedFile::create("memfd:trusted", kMiB);
  ASSERT_TRUE(anonymous);
  EXPECT_TRUE(SharedFile::open(anonymous->path(), Access::kReadWrite, Owners::kTrusted));
  ASSERT_EQ(chmod(path("a").c_str(), 0600), 0);
  if (chown(path("a").c_str(), 4711, 4711) != 0)
    GTEST_SKIP() << "this user may not give files away";
  const auto foreign = opens("link");
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, Code::kPermission);
  EXPECT_NE(message(foreign.error()).find("user 4711, mode 0600"), std::string::npos)
      << message(foreign.error());
}

TEST_F(SharedFileTest, AForkedChildHasNoMappingUnlessAskedFor) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's write() looks at the memory itself";
#endif
  const auto file = SharedFile::create(path("a"), 2 * kMiB);
  ASSERT_TRUE(file);
  for (const bool dont_fork : {true, false}) {
    const auto mapping = file->map({.dont_fork = dont_fork});
    ASSERT_TRUE(mapping);
    auto child = Child::start([&] {
      // Asked of the kernel: write() from memory that is not there is EFAULT, not a signal.
      FileDescriptor sink(::open(path(dont_fork ? "x" : "y").c_str(), O_CREAT | O_WRONLY, 0600));
      return write(sink.get(), mapping->data(), 1) == 1 ? 1 : 0;
    });
    ASSERT_TRUE(child);
    EXPECT_EQ(child->wait()->exit_code, dont_fork ? 0 : 1);
  }
}

TEST_F(SharedFileTest, HolesAreFilledAndWhatIsThereStays) {
  FileDescriptor fd(::open(path("a").c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_EQ(pwrite(fd.get(), "x", 1, 5), 1);
  ASSERT_EQ(ftruncate(fd.get(), 3 * kMiB), 0);
  ASSERT_TRUE(has_holes(fd.get()));
  EXPECT_TRUE(fill_holes(fd.get(), "a"));
  EXPECT_FALSE(has_holes(fd.get()));
  EXPECT_EQ(fs::file_size(path("a")), 3 * kMiB);
  char byte = 0;
  EXPECT_EQ(pread(fd.get(), &byte, 1, 5), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(SharedFileTest, HolesThatCannotBeFilledAreAnError) {
  FileDescriptor fd(::open(path("a").c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_EQ(ftruncate(fd.get(), std::int64_t{1} << 50), 0);
  const Status filled = fill_holes(fd.get(), "a");
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.error().code, Code::kNoSpace) << filled.error().message;
  EXPECT_TRUE(has_holes(fd.get()));
}

// --- Parts of a file ---

class FilePartTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kUnit = 2 << 20;

  void SetUp() override {
    path_ = "/dev/shm/cachalot_part_test." + std::to_string(getpid());
    ASSERT_TRUE(SharedFile::create(path_, 4 * kUnit, {}));
  }
  void TearDown() override { unlink(path_.c_str()); }

  std::string path_;
};

TEST_F(FilePartTest, IsMappedFromItsOffsetOnAndNeverRemoved) {
  const Result<SharedFile> whole = SharedFile::open(path_);
  const Result<SharedFile> part = SharedFile::create(path_ + "@2MiB+4MiB", 4 << 20, {});
  ASSERT_TRUE(whole && part) << part.error().message;
  EXPECT_EQ(part->bytes(), 2 * kUnit);
  EXPECT_EQ(part->path(), path_ + "@2097152+4194304");
  EXPECT_EQ(part->file_path(), path_);
  const Result<Mapping> all = whole->map();
  const Result<Mapping> some = part->map();
  ASSERT_TRUE(all && some);
  some->data()[5] = std::byte{42};
  EXPECT_EQ(all->data()[kUnit + 5], std::byte{42});
  EXPECT_TRUE(part->remove());
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
  EXPECT_TRUE(part->require_bytes(2 * kUnit));
  EXPECT_FALSE(part->require_bytes(3 * kUnit));
}

TEST_F(FilePartTest, PartsOfOneFileOverlapOrNot) {
  const Result<SharedFile> whole = SharedFile::open(path_);
  const Result<SharedFile> first = SharedFile::open(path_ + "@0+4MiB");
  const Result<SharedFile> second = SharedFile::open(path_ + "@4MiB+4MiB");
  const Result<SharedFile> middle = SharedFile::open(path_ + "@2MiB+4MiB");
  ASSERT_TRUE(whole && first && second && middle);
  EXPECT_FALSE(first->overlaps(*second));
  EXPECT_TRUE(first->overlaps(*middle) && middle->overlaps(*second) && second->overlaps(*whole));
}

TEST_F(FilePartTest, NumbersThatNoPartCanHaveAreErrorsThatNameIt) {
  for (const char* const part : {"@1MiB+2MiB", "@0+1MiB", "@0+0", "@2MiB+8MiB", "@16EiB+2MiB"}) {
    const Result<SharedFile> file = SharedFile::open(path_ + part);
    ASSERT_FALSE(file) << part;
    EXPECT_EQ(file.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(file.error().message).find(path_), std::string::npos)
        << file.error().message;
  }
  // Another kind of name.
  EXPECT_EQ(SharedFile::open(path_ + "@home+x").error().code, Code::kNotFound);
}

TEST_F(FilePartTest, AFileThatIsCalledSoIsThatFile) {
  const std::string name = path_ + "@0+2MiB";
  ASSERT_TRUE(SharedFile::create(path_ + "x", kUnit, {}));
  ASSERT_EQ(rename((path_ + "x").c_str(), name.c_str()), 0);
  const Result<SharedFile> file = SharedFile::open(name);
  ASSERT_TRUE(file);
  EXPECT_FALSE(file->is_part());
  unlink(name.c_str());
}

}  // namespace
}  // namespace cachalot::os

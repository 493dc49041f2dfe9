#include "storage/file/file_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "storage/encrypted.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

BackendUnderTest conformant(const char* name, IoBatch::Kind io, bool sync, bool is_encrypted) {
  const auto open = [=](const std::string& folder) -> Result<std::unique_ptr<Backend>> {
    FileOptions options{.directory = folder + "/objects", .segment_bytes = 1u << 20};
    options.io = io;
    options.sync = sync;
    CACHALOT_TRY_ASSIGN(std::unique_ptr<FileBackend> backend, FileBackend::open(options));
    if (is_encrypted) return make_encrypted(std::move(backend), StorageKey{{1, 2, 3}});
    return std::unique_ptr<Backend>(std::move(backend));
  };
  return {name, open, true};
}

INSTANTIATE_TEST_SUITE_P(
    File, BackendConformance,
    ::testing::Values(conformant("file", IoBatch::Kind::kUring, false, false),
                      conformant("file_by_system_calls", IoBatch::Kind::kSystemCalls, false, false),
                      conformant("file_sync", IoBatch::Kind::kUring, true, false),
                      conformant("file_encrypted", IoBatch::Kind::kUring, false, true)),
    name_of_backend);

class FileRig final : public FaultRig {
 public:
  explicit FileRig(std::string folder) : folder_(std::move(folder)) {}
  static std::unique_ptr<FaultRig> make(const std::string& folder) {
    return std::make_unique<FileRig>(folder);
  }
  static std::unique_ptr<FaultRig> make_small(const std::string& folder) {
    return mount_memory(folder, 24u << 20) ? make(folder) : nullptr;
  }
  Result<std::unique_ptr<Backend>> open() override {
    CACHALOT_TRY_ASSIGN(
        std::unique_ptr<FileBackend> backend,
        FileBackend::open({.directory = folder_ + "/objects", .segment_bytes = 1u << 20}));
    return std::unique_ptr<Backend>(std::move(backend));
  }
  bool shares_files() const override { return true; }
  bool replaces_when_full() const override { return true; }
  void begin(Fault) override { fill_up(folder_ + "/filler"); }
  void end(Fault) override { std::filesystem::remove(folder_ + "/filler"); }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    damage_files(folder_, fault, {chain.data(i), chain.bytes()}, {other.data(0), other.bytes()});
  }

 private:
  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(File, StorageFull,
                         ::testing::Values(RigUnderTest{"file", FileRig::make_small, Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(File, StorageDamage,
                         ::testing::Values(RigUnderTest{"file", FileRig::make, Fault::kBitFlipped},
                                           RigUnderTest{"file", FileRig::make, Fault::kTruncated},
                                           RigUnderTest{"file", FileRig::make, Fault::kSwapped}),
                         name_of_rig);

class FileBackendTest : public ::testing::Test {
 protected:
  FileOptions options() const {
    return {.directory = folder_ + "/objects", .segment_bytes = 1u << 20};
  }
  Status open() {
    backend_.reset();
    CACHALOT_TRY_ASSIGN(backend_, FileBackend::open(options()));
    return {};
  }
  std::string segment(int number = 0) const {
    char name[40];
    std::snprintf(name, sizeof name, "/objects/segment-%08d", number);
    return folder_ + name;
  }
  void overwrite(const std::string& path, std::uint64_t at, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file) << path;
    file.seekp(static_cast<std::streamoff>(at));
    file << bytes;
  }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<FileBackend> backend_;
};

TEST_F(FileBackendTest, ItSaysHowItReadsAndWrites) {
  ASSERT_TRUE(open());
  EXPECT_EQ(backend_->describe_io().find("io_uring"), 0u) << backend_->describe_io();
  EXPECT_EQ(IoBatch::make(1, IoBatch::Kind::kSystemCalls)->kind(), IoBatch::Kind::kSystemCalls);
}

// The buffer has room for half of them: the others begin when a part is free.
TEST_F(FileBackendTest, AGetOfMoreThanTheBufferHoldsBringsEachObject) {
  constexpr std::size_t kObjects = 40;
  Chain chain(1, kObjects, 3u << 20, 2);
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, chain), kObjects);
  for (const IoBatch::Kind kind : {IoBatch::Kind::kUring, IoBatch::Kind::kSystemCalls}) {
    backend_.reset();
    FileOptions given = options();
    given.io = kind;
    Result<std::unique_ptr<FileBackend>> opened = FileBackend::open(given);
    ASSERT_TRUE(opened);
    backend_ = *std::move(opened);
    EXPECT_EQ(get_all(*backend_, chain), std::vector<bool>(kObjects, true));
  }
}

TEST_F(FileBackendTest, ASecondOwnerIsRefused) {
  ASSERT_TRUE(open());
  const Result<std::unique_ptr<FileBackend>> second = FileBackend::open(options());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(std::string(second.error().message).find("another process uses it"), std::string::npos);
}

TEST_F(FileBackendTest, ADirectoryWithOtherFilesIsLeftAlone) {
  std::filesystem::create_directory(folder_ + "/objects");
  std::ofstream(folder_ + "/objects/thesis.tex") << "text";
  const Status opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(opened.error().message).find("thesis.tex"), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/objects"), {}), 1);
}

TEST_F(FileBackendTest, ADirectoryOfAnotherVersionIsRefused) {
  std::filesystem::create_directory(folder_ + "/objects");
  std::ofstream(folder_ + "/objects/cachalot-storage") << "cachalot storage 7\n";
  const Status opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kVersionMismatch);
  EXPECT_NE(std::string(opened.error().message).find("version 7"), std::string::npos);
}

TEST_F(FileBackendTest, ADamagedMarkIsRefusedAndLeftAlone) {
  std::filesystem::create_directory(folder_ + "/objects");
  std::ofstream(folder_ + "/objects/cachalot-storage") << "garbage";
  const Status opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kBadInput);
  EXPECT_NE(std::string(opened.error().message).find("cachalot-storage"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/objects/cachalot-storage"), 7u);
}

TEST_F(FileBackendTest, ADirectoryThatCannotBeMadeIsNamed) {
  FileOptions options{.directory = folder_ + "/no/such"};
  const auto opened = FileBackend::open(options);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kNotFound);
  EXPECT_NE(std::string(opened.error().message).find("/no/such"), std::string::npos);
}

TEST_F(FileBackendTest, ADamagedEntryIsLostAndTheOthersAreThere) {
  Chain chain(1, 8, 4096);
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  backend_.reset();
  overwrite(segment(), kPageBytes + 2 * sizeof(SegmentEntry) + 9, "X");
  ASSERT_TRUE(open());
  const std::vector<bool> got = get_all(*backend_, chain);
  EXPECT_EQ(std::count(got.begin(), got.end(), true), 7);
  EXPECT_TRUE(backend_->is_valid());
}

TEST_F(FileBackendTest, ADamagedHeaderLosesOneSegmentOnly) {
  Chain first(1, 16, 65536), second(2, 16, 65536);  // a segment has 16 slots
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, first), 16u);
  ASSERT_EQ(put_all(*backend_, second), 16u);
  backend_.reset();
  overwrite(segment(0), 3, "X");
  ASSERT_TRUE(open());
  EXPECT_EQ(get_all(*backend_, second), std::vector<bool>(16, true));
  EXPECT_EQ(get_all(*backend_, first), std::vector<bool>(16, false));
  Chain third(3, 16, 65536);
  EXPECT_EQ(put_all(*backend_, third), 16u);
  EXPECT_EQ(get_all(*backend_, third), std::vector<bool>(16, true));
}

TEST_F(FileBackendTest, ASegmentThatIsCutOffIsLost) {
  Chain chain(1, 8, 4096);
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  backend_.reset();
  for (const std::uintmax_t bytes : {9000, 4096, 4095, 1, 0}) {
    std::filesystem::resize_file(segment(), bytes);
    ASSERT_TRUE(open()) << bytes;
    EXPECT_EQ(get_all(*backend_, chain), std::vector<bool>(8, false)) << bytes;
    backend_.reset();
  }
  ASSERT_TRUE(open());
  EXPECT_EQ(put_all(*backend_, chain), 8u);
}

TEST_F(FileBackendTest, ASegmentThatIsCutOffWhileItIsOpenHasCorruptObjects) {
  Chain chain(1, 8, 65536);
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  std::filesystem::resize_file(segment(), 9000);
  std::vector<Room> room = chain.room(3);
  Get get{chain.key(3), room};
  ASSERT_TRUE(backend_->get({&get, 1}, soon()));
  ASSERT_FALSE(get.status);
  EXPECT_EQ(get.status.error().code, Code::kCorrupt) << get.status.error().message;
}

// The caller's memory may be a pool's, and io_uring goes on after the process was killed: so the kernel has no address in it.
// A read that failed shows what the kernel was given: it has filled half of that.
TEST_F(FileBackendTest, ReadsOfTheKernelGoIntoMemoryOfTheBackend) {
  ASSERT_TRUE(open());
  Chain chain(1, 1, 65536);
  ASSERT_EQ(put_all(*backend_, chain), 1u);
  std::filesystem::resize_file(segment(), 2 * 4096 + 32768);  // header, table, half of a body
  chain.clear(0);
  std::vector<Room> room = chain.room(0);
  Get get{chain.key(0), room};
  ASSERT_TRUE(backend_->get({&get, 1}, soon()));
  ASSERT_FALSE(get.status);
  EXPECT_EQ(get.status.error().code, Code::kCorrupt);
  for (std::uint64_t i = 0; i < chain.bytes(); ++i)
    ASSERT_EQ(chain.data(0)[i], std::byte{0xee}) << i;
}

TEST_F(FileBackendTest, GetsOfMoreThanOneBufferHasRoomFor) {
  ASSERT_TRUE(open());
  Chain chain(1, 9, 8u << 20, 3);
  ASSERT_EQ(put_all(*backend_, chain), 9u);
  EXPECT_EQ(get_all(*backend_, chain), std::vector<bool>(9, true));
  EXPECT_TRUE(backend_->is_valid());
}

TEST_F(FileBackendTest, TheListHasTheOrderOfThePutsAlsoOverSegments) {
  Chain first(1, 16, 65536), second(2, 16, 65536), chain(3, 6, 65536);  // a segment has 16 slots
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, first), 16u);
  ASSERT_EQ(put_all(*backend_, second), 16u);
  std::vector<ObjectKey> gone;
  for (std::size_t i = 0; i < 16; ++i) {
    gone.push_back(first.key(i));
    gone.push_back(second.key(i));
  }
  ASSERT_TRUE(backend_->remove(gone, soon()));
  ASSERT_EQ(put_all(*backend_, chain), 6u);
  ASSERT_TRUE(open());
  std::vector<BlockHash> listed;
  ASSERT_TRUE(backend_->list(
      [&](const ObjectHead& head) {
        if (head.key.block.high == 3) listed.push_back(head.key.block);
        return true;
      },
      soon()));
  EXPECT_EQ(listed, chain.hashes());
}

// I/O of a killed process holds its open file, and so the lock.
TEST_F(FileBackendTest, OpeningWaitsForRequestsOfADeadOwner) {
  Chain chain(1, 8, 4096);
  ASSERT_TRUE(open());
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  backend_.reset();
  os::FileDescriptor in_flight(::open(segment().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(in_flight.get(), LOCK_EX), 0);
  std::atomic<bool> is_done = false;
  std::thread request([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    is_done = true;
    in_flight = os::FileDescriptor();
  });
  EXPECT_TRUE(open());
  EXPECT_TRUE(is_done);
  request.join();
  EXPECT_EQ(get_all(*backend_, chain), std::vector<bool>(8, true));
}

// Blocks of 4 KiB with segments of 256 MiB: 16, 16, 32, 64 slots for 100 blocks.
TEST_F(FileBackendTest, SegmentsGrowWithWhatIsStored) {
  FileOptions large = options();
  large.segment_bytes = std::uint64_t{256} << 20;
  Result<std::unique_ptr<FileBackend>> backend = FileBackend::open(large);
  ASSERT_TRUE(backend);
  Chain chain(1, 100, 4096);
  ASSERT_EQ(put_all(**backend, chain), 100u);
  std::vector<std::uint64_t> slots;
  for (int number = 0; std::filesystem::exists(segment(number)); ++number)
    slots.push_back(std::filesystem::file_size(segment(number)) / 4096);
  ASSERT_EQ(slots.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t wanted = i < 2 ? 16 : 8u << i;
    EXPECT_GE(slots[i], wanted) << i;
    EXPECT_LE(slots[i], wanted + 4) << i << ": with its header and table";
  }
  EXPECT_EQ(get_all(**backend, chain), std::vector<bool>(100, true));
}

TEST_F(FileBackendTest, SlotsOfOtherSizesGiveTheirSpaceBack) {
  ASSERT_TRUE(open());
  for (std::uint64_t round = 0; round < 20; ++round) {
    Chain chain(round + 1, 4, (round + 1) * 4096);
    ASSERT_EQ(put_all(*backend_, chain), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      const ObjectKey key = chain.key(i);
      ASSERT_TRUE(backend_->remove({&key, 1}, soon()));
    }
    ASSERT_TRUE(backend_->is_valid());
  }
  EXPECT_LE(std::distance(std::filesystem::directory_iterator(folder_ + "/objects"), {}), 4);
}

}  // namespace
}  // namespace cachalot::storage

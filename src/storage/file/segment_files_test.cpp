// The files of a storage directory: whose they are, what stands in their place, how many are open, and their bytes as
// docs/formats/storage-file.md says.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/log.h"
#include "os/file_descriptor.h"
#include "storage/backends.h"
#include "storage/file/file_backend.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/chains.h"

namespace cachalot::storage {
namespace {

namespace fs = std::filesystem;

class SegmentFiles : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 65536;
  static constexpr std::size_t kSlots = 16;  // of a segment
  static constexpr uid_t kOther = 4711;

  std::string objects() const { return folder_ + "/objects"; }
  std::string segment(int number) const {
    char name[40];
    std::snprintf(name, sizeof name, "/segment-%08d", number);
    return objects() + name;
  }
  Status open(os::Owners owners = os::Owners::kTrusted, std::uint64_t most_open = 256) {
    backend_.reset();
    CACHALOT_TRY_ASSIGN(backend_, FileBackend::open({.directory = objects(),
                                                     .segment_bytes = 1u << 20,
                                                     .owners = owners,
                                                     .most_open = most_open}));
    return {};
  }
  // Segments 0 to count - 1, of a chain each, and closes the storage.
  void fill(std::size_t count) {
    ASSERT_TRUE(open());
    for (std::size_t i = 0; i < count; ++i) {
      chains_.emplace_back(i + 1, kSlots, kBytes);
      ASSERT_EQ(put_all(*backend_, chains_.back()), kSlots);
    }
    backend_.reset();
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(fs::exists(segment(static_cast<int>(i))));
  }
  bool has(std::size_t chain) {
    return get_all(*backend_, chains_[chain]) == std::vector<bool>(kSlots, true);
  }
  bool lacks(std::size_t chain) {
    return get_all(*backend_, chains_[chain]) == std::vector<bool>(kSlots, false);
  }
  void expect_refused(const std::string& path, const std::string& says) {
    const Status opened = open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::kPermission);
    const std::string message = opened.error().message;
    for (const std::string& part : {path, says, std::string("?allow_foreign=1")})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<FileBackend> backend_;
  std::vector<Chain> chains_;
};

// --- Whose they are --------------------------------------------------------------------------------

TEST_F(SegmentFiles, ADirectoryThatOthersMayWriteIsRefusedUnlessItIsAllowed) {
  fill(1);
  for (const mode_t mode : {0770u, 0707u, 01777u}) {
    ASSERT_EQ(::chmod(objects().c_str(), mode), 0);
    expect_refused(objects(), "mode " + std::string(mode == 01777  ? "1777"
                                                    : mode == 0770 ? "0770"
                                                                   : "0707"));
    ASSERT_TRUE(open(os::Owners::kAny));
    EXPECT_TRUE(has(0));
  }
  ASSERT_EQ(::chmod(objects().c_str(), 0755), 0);
  EXPECT_TRUE(open());
}

TEST_F(SegmentFiles, ADirectoryOrMarkOfAnotherUserIsRefusedUnlessItIsAllowed) {
  fill(1);
  const std::string mark = objects() + "/cachalot-storage";
  for (const std::string& path : {objects(), mark}) {
    if (::chown(path.c_str(), kOther, kOther) != 0)
      GTEST_SKIP() << "this user may not give files away";
    expect_refused(path, "belongs to user 4711");
    ASSERT_TRUE(open(os::Owners::kAny));
    EXPECT_TRUE(has(0));
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  }
  ASSERT_EQ(::chmod(mark.c_str(), 0622), 0);
  expect_refused(mark, "mode 0622");
}

TEST_F(SegmentFiles, WhatALinkLeadsToCounts) {
  fill(1);
  fs::rename(objects(), folder_ + "/real");
  fs::create_directory_symlink("real", objects());
  ASSERT_TRUE(open());
  EXPECT_TRUE(has(0));
  ASSERT_EQ(::chmod((folder_ + "/real").c_str(), 0777), 0);
  expect_refused(objects(), "mode 0777");
}

TEST_F(SegmentFiles, AMarkThatIsNoFileIsRefused) {
  fill(1);
  const std::string mark = objects() + "/cachalot-storage";
  fs::rename(mark, folder_ + "/mark");
  fs::create_symlink(folder_ + "/mark", mark);
  const Status opened = open(os::Owners::kAny);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kBadInput) << opened.error().message;
}

TEST_F(SegmentFiles, ASegmentOfAnotherUserOrThatOthersMayWriteIsLeftOutUnlessItIsAllowed) {
  fill(3);
  ASSERT_EQ(::chmod(segment(1).c_str(), 0620), 0);
  const bool is_given = ::chown(segment(2).c_str(), kOther, kOther) == 0;
  ASSERT_TRUE(open());
  EXPECT_TRUE(has(0));
  EXPECT_TRUE(lacks(1));
  EXPECT_EQ(lacks(2), is_given);
  ASSERT_TRUE(open(os::Owners::kAny));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(has(i)) << i;
}

TEST_F(SegmentFiles, WhatIsMadeIsOfThisUserOnly) {
  const mode_t before = ::umask(0);
  fill(1);
  ::umask(before);
  for (const std::string& path : {objects(), objects() + "/cachalot-storage", segment(0)}) {
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0077u, 0u) << path;
  }
}

// --- What stands in their place --------------------------------------------------------------------

TEST_F(SegmentFiles, WhatIsNoSegmentOfOursIsLeftOutAndLeftAsItIs) {
  fill(6);
  {
    std::fstream file(segment(0), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(2);  // the version
  }
  fs::rename(segment(1), folder_ + "/moved");
  fs::create_symlink(folder_ + "/moved", segment(1));
  fs::remove(segment(2));
  fs::create_directory(segment(2));
  fs::remove(segment(3));
  ASSERT_EQ(::mkfifo(segment(3).c_str(), 0600), 0);
  fs::remove(segment(4));
  fs::create_symlink("nowhere", segment(4));
  const auto moved = fs::last_write_time(folder_ + "/moved");
  testing::internal::CaptureStderr();
  base::set_log_level(base::LogLevel::kWarn);
  const Status opened = open();
  base::set_log_level(base::LogLevel::kOff);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(opened) << opened.error().message;
  for (int i = 0; i < 5; ++i) EXPECT_NE(log.find(segment(i)), std::string::npos) << i << log;
  EXPECT_NE(log.find("version 2, expected 1"), std::string::npos) << log;
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(lacks(i)) << i;
  EXPECT_TRUE(has(5));
  // New segments take other places.
  const std::size_t before = chains_.size();
  for (std::uint64_t name = 100; name < 104; ++name) {
    chains_.emplace_back(name, kSlots, kBytes);
    ASSERT_EQ(put_all(*backend_, chains_.back()), kSlots);
  }
  ASSERT_TRUE(open());
  for (std::size_t i = before; i < chains_.size(); ++i) EXPECT_TRUE(has(i)) << i;
  EXPECT_TRUE(backend_->is_valid());
  EXPECT_TRUE(fs::is_symlink(segment(1)) && fs::is_directory(segment(2)) &&
              fs::is_fifo(segment(3)));
  EXPECT_TRUE(fs::is_symlink(segment(4)) && !fs::exists(objects() + "/nowhere"));
  EXPECT_EQ(fs::last_write_time(folder_ + "/moved"), moved);
  // It is whole again when the version is.
  std::fstream(segment(0), std::ios::in | std::ios::out | std::ios::binary).seekp(8).put(1);
  ASSERT_TRUE(open());
  EXPECT_TRUE(has(0));
}

TEST_F(SegmentFiles, NamesThatAreNoNumbersAreNoneOfOurs) {
  fill(1);
  const char* const names[] = {"segment-notes.new",       "segment-42",
                               "segment-000000001",       "segment-0000000x",
                               "segment-99999999999.new", "segment-"};
  for (const char* const name : names) std::ofstream(objects() + "/" + name) << "text";
  std::ofstream(objects() + "/segment-4294967295") << "text";  // a number, and the largest
  std::ofstream(objects() + "/segment-00000007.new") << "never finished";
  ASSERT_TRUE(open());
  EXPECT_TRUE(has(0));
  chains_.emplace_back(9, kSlots, kBytes);
  ASSERT_EQ(put_all(*backend_, chains_.back()), kSlots);
  EXPECT_TRUE(has(1));
  EXPECT_TRUE(fs::exists(segment(1)));
  for (const char* const name : names) EXPECT_EQ(fs::file_size(objects() + "/" + name), 4u) << name;
  EXPECT_FALSE(fs::exists(objects() + "/segment-00000007.new"));
}

// What comes into the place of the next segment while the storage is open is not replaced.
TEST_F(SegmentFiles, APlaceThatIsTakenMeanwhileIsLeftToWhatHasIt) {
  fill(1);
  ASSERT_TRUE(open());
  std::ofstream(segment(1)) << "text";
  fs::create_directory(segment(2) + ".new");
  chains_.emplace_back(9, kSlots, kBytes);
  ASSERT_EQ(put_all(*backend_, chains_.back()), kSlots);
  EXPECT_TRUE(has(1));
  EXPECT_EQ(fs::file_size(segment(1)), 4u);
  EXPECT_TRUE(fs::is_directory(segment(2) + ".new"));
  EXPECT_TRUE(fs::exists(segment(3)));
}

// --- How many are open -----------------------------------------------------------------------------

std::size_t open_files(const std::string& below) {
  std::size_t count = 0;
  std::error_code ignored;
  for (const auto& fd : fs::directory_iterator("/proc/self/fd"))
    count += fs::read_symlink(fd, ignored).string().starts_with(below + "/segment-");
  return count;
}

TEST_F(SegmentFiles, OnlyTheLastUsedStayOpen) {
  fill(40);
  ASSERT_TRUE(open(os::Owners::kTrusted, 4));
  EXPECT_EQ(open_files(objects()), 4u);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(has(i * 7 % 40)) << i;
    EXPECT_LE(open_files(objects()), 4u);
  }
  // One call over all of them needs all of them, for a moment.
  std::vector<std::vector<Room>> rooms;
  std::vector<Get> gets;
  for (Chain& chain : chains_) rooms.push_back(chain.room(3));
  for (std::size_t i = 0; i < 40; ++i) gets.push_back({chains_[i].key(3), rooms[i]});
  ASSERT_TRUE(backend_->get(gets, soon()));
  for (std::size_t i = 0; i < 40; ++i) EXPECT_TRUE(gets[i].status && chains_[i].is_right(3)) << i;
  EXPECT_LE(open_files(objects()), 4u);
  EXPECT_TRUE(backend_->check());
}

TEST_F(SegmentFiles, CallsOfManyThreadsShareFewDescriptors) {
  fill(24);
  ASSERT_TRUE(open(os::Owners::kTrusted, 1));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      base::Rng random(t + 1);
      for (int round = 0; round < 60; ++round) {
        const std::uint64_t name = random.below(24) + 1;
        Chain read(name, kSlots, kBytes), written(1000 + t * 100 + round, 2, kBytes);
        wrong += get_all(*backend_, read) != std::vector<bool>(kSlots, true);
        wrong += put_all(*backend_, written) != 2;
        wrong += get_all(*backend_, written) != std::vector<bool>(2, true);
        const ObjectKey keys[] = {written.key(0), written.key(1)};
        wrong += !backend_->remove(keys, soon()).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(open_files(objects()), 1u);
  EXPECT_TRUE(backend_->is_valid());
}

TEST_F(SegmentFiles, ASegmentThatWasReplacedWhileItWasClosedIsNotUsed) {
  fill(3);
  ASSERT_TRUE(open(os::Owners::kTrusted, 1));
  EXPECT_TRUE(has(2));
  fs::rename(segment(0), folder_ + "/away");
  fs::copy_file(folder_ + "/away", segment(0));
  EXPECT_TRUE(lacks(0));
  const Status checked = backend_->check();
  ASSERT_FALSE(checked);
  EXPECT_NE(std::string(checked.error().message).find(segment(0)), std::string::npos);
}

// Takes all descriptors of the process but `left`.
std::vector<os::FileDescriptor> take_descriptors(std::size_t left) {
  std::vector<os::FileDescriptor> taken;
  for (int fd = 0; (fd = ::dup(0)) >= 0;) taken.emplace_back(fd);
  taken.resize(taken.size() - std::min(left, taken.size()));
  return taken;
}

// With few descriptors it works; with none it is as a full disk, and nothing is out of use.
TEST_F(SegmentFiles, WithoutDescriptorsItIsLikeAFullDisk) {
  fill(30);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{200, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  std::unique_ptr<Store> store;
  {
    std::vector<os::FileDescriptor> taken = take_descriptors(6);
    ASSERT_TRUE(open());
    store = Store::make(std::move(backend_), {});
    const auto get = [&](std::size_t i) {
      std::vector<Room> room = chains_[i].room(0);
      Get one{chains_[i].key(0), room};
      store->get({&one, 1}, soon());
      return one.status;
    };
    for (std::size_t i = 0; i < 30; ++i) EXPECT_TRUE(get(i)) << i;
    // The last ones, too: those that the storage has open are of no use for the others then.
    const std::vector<os::FileDescriptor> last = take_descriptors(0);
    for (std::size_t i = 0; i < 30; ++i) EXPECT_TRUE(get(i)) << i;
    EXPECT_TRUE(store->is_up());
    EXPECT_EQ(store->counts().outages, 0u);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(SegmentFiles, WhenOthersHaveAllDescriptorsPutsAndGetsFailAndWorkAgainAfterwards) {
  fill(3);
  ASSERT_TRUE(open(os::Owners::kTrusted, 0));  // so that all are closed
  FileBackend* const backend = backend_.get();
  const std::unique_ptr<Store> store = Store::make(std::move(backend_), {});
  const std::uint64_t objects_before = store->catalogue().objects();
  const auto get = [&] {
    std::vector<Room> room = chains_[1].room(0);
    Get one{chains_[1].key(0), room};
    store->get({&one, 1}, soon());
    return one.status;
  };
  const auto put = [&](std::uint64_t name) {
    const Chain chain(name, 1, kBytes);
    const std::vector<Bytes> payload = chain.payload(0);
    BlockPut block{chain.hashes()[0], payload};
    return store->put(kSpace, nullptr, {&block, 1}, soon());
  };
  {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit small{200, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
    const std::vector<os::FileDescriptor> taken = take_descriptors(0);
    for (std::uint64_t i = 0; i < 10; ++i) {
      const Status got = get();
      EXPECT_FALSE(got);
      EXPECT_EQ(got.error().code, Code::kNoSpace) << got.error().message;
      EXPECT_EQ(put(100 + i), 0u);
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  EXPECT_TRUE(store->is_up());
  EXPECT_EQ(store->counts().outages, 0u);
  EXPECT_EQ(store->catalogue().objects(), objects_before);  // none was evicted in vain
  EXPECT_TRUE(get());
  EXPECT_EQ(put(200), 1u);
  EXPECT_TRUE(backend->is_valid());
}

// --- Their bytes -----------------------------------------------------------------------------------

// CRC-32C as the page says: the polynomial of Castagnoli, all ones at the start, not inverted at the end.
std::uint32_t crc_of(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return crc;
}
std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < size; ++i)
    number |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return number;
}

// Reads a segment by docs/formats/storage-file.md alone.
TEST_F(SegmentFiles, AreAsTheirPageSays) {
  ASSERT_TRUE(open());
  const Chain chain(1, 5, kBytes, 3);
  ASSERT_EQ(put_all(*backend_, chain), 5u);
  backend_.reset();
  std::ifstream file(segment(0), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(bytes.substr(0, 8), std::string("CchSegm\0", 8));
  EXPECT_EQ(number_at(bytes, 8, 4), 1u);
  const std::uint64_t slots = number_at(bytes, 12, 4), slot_bytes = number_at(bytes, 16, 8);
  EXPECT_EQ(slots, kSlots);
  EXPECT_EQ(slot_bytes, 69632u);
  EXPECT_EQ(number_at(bytes, 24, 8), crc_of(bytes.substr(0, 24)));
  const std::uint64_t first_slot = 4096 + (128 * slots + 4095) / 4096 * 4096;
  EXPECT_EQ(bytes.size(), first_slot + slots * slot_bytes);
  std::size_t used = 0;
  std::uint64_t last_sequence = 0;
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    std::string entry = bytes.substr(4096 + 128 * slot, 128);
    if (number_at(entry, 120, 4) == 0) continue;
    EXPECT_EQ(number_at(entry, 120, 4), 1u);
    const std::uint64_t crc = number_at(entry, 124, 4);
    std::fill(entry.begin() + 124, entry.end(), '\0');
    EXPECT_EQ(crc, crc_of(entry));
    EXPECT_EQ(entry.substr(0, 8), std::string("CchObj1\0", 8));
    EXPECT_EQ(number_at(entry, 56, 8), kBytes);
    EXPECT_EQ(number_at(entry, 64, 4), 3u);
    EXPECT_GT(number_at(entry, 112, 8), last_sequence);
    last_sequence = number_at(entry, 112, 8);
    EXPECT_EQ(std::memcmp(bytes.data() + first_slot + slot * slot_bytes, chain.data(used), kBytes),
              0);
    ++used;
  }
  EXPECT_EQ(used, 5u);
}

}  // namespace
}  // namespace cachalot::storage

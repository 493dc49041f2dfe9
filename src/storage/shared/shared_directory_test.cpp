#include "storage/shared/shared_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/fanotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "storage/backends.h"
#include "storage/encrypted.h"
#include "storage/shared/object_files.h"
#include "storage/shared/sweep.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

Result<std::unique_ptr<Backend>> open_at(const std::string& folder, std::uint64_t limit_bytes = 0) {
  return SharedDirectory::open({.directory = folder, .limit_bytes = limit_bytes});
}

BackendUnderTest conformant(const char* name, std::uint64_t limit_bytes, bool is_encrypted) {
  const auto open = [=](const std::string& folder) -> Result<std::unique_ptr<Backend>> {
    fs::create_directory(folder + "/objects");
    CACHALOT_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                        open_at(folder + "/objects", limit_bytes));
    if (is_encrypted) return make_encrypted(std::move(backend), StorageKey{{1, 2, 3}});
    return backend;
  };
  return {name, open};
}

INSTANTIATE_TEST_SUITE_P(Shared, BackendConformance,
                         ::testing::Values(conformant("shared", 0, false),
                                           conformant("shared_with_limit", 1u << 30, false),
                                           conformant("shared_encrypted", 0, true)),
                         name_of_backend);

// The directory of this test's own small file system, so that it can hang, too: opens wait for a listener's permission.
class SharedRig final : public FaultRig {
 public:
  explicit SharedRig(std::string folder) : folder_(std::move(folder)) {
    // What a store asks for once a second is opened, too.
    fs::create_directories(folder_ + "/objects/000");
    std::ofstream(folder_ + "/objects/cachalot-storage") << "cachalot shared 1\n";
    std::ofstream(folder_ + "/objects/000/" + to_text(ObjectKey{}));
  }
  static std::unique_ptr<FaultRig> make(const std::string& folder) {
    return std::make_unique<SharedRig>(folder);
  }
  static std::unique_ptr<FaultRig> make_small(const std::string& folder) {
    return mount_memory(folder, 24u << 20) ? make(folder) : nullptr;
  }
  static std::unique_ptr<FaultRig> make_that_hangs(const std::string& folder) {
    const os::FileDescriptor listener(::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY));
    return listener ? make_small(folder) : nullptr;
  }
  ~SharedRig() override { listener_.close(); }
  Result<std::unique_ptr<Backend>> open() override {
    return SharedDirectory::open({.directory = folder_ + "/objects", .patience_ns = 300'000'000});
  }
  bool replaces_when_full() const override { return true; }
  void begin(Fault fault) override {
    if (fault == Fault::kFull) {
      fill_up(folder_ + "/filler");
      fs::resize_file(folder_ + "/filler", fs::file_size(folder_ + "/filler") - (2u << 20));
      return;
    }
    listener_ = os::FileDescriptor(::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY));
    EXPECT_EQ(::fanotify_mark(listener_.get(), FAN_MARK_ADD | FAN_MARK_MOUNT,
                              FAN_OPEN_PERM | FAN_ONDIR, AT_FDCWD, folder_.c_str()),
              0);
  }
  void end(Fault fault) override {
    if (fault == Fault::kFull) fs::remove(folder_ + "/filler");
    listener_.close();
  }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    damage_files(folder_, fault, {chain.data(i), chain.bytes()}, {other.data(0), other.bytes()});
  }

 private:
  std::string folder_;
  os::FileDescriptor listener_;
};

INSTANTIATE_TEST_SUITE_P(Shared, StorageOutage,
                         ::testing::Values(RigUnderTest{"shared", SharedRig::make_that_hangs,
                                                        Fault::kPaused}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(Shared, StorageFull,
                         ::testing::Values(RigUnderTest{"shared", SharedRig::make_small,
                                                        Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(
    Shared, StorageDamage,
    ::testing::Values(RigUnderTest{"shared", SharedRig::make, Fault::kBitFlipped},
                      RigUnderTest{"shared", SharedRig::make, Fault::kTruncated},
                      RigUnderTest{"shared", SharedRig::make, Fault::kSwapped}),
    name_of_rig);

class SharedDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(kv_); }
  void TearDown() override {
    while (::umount2(kv_.c_str(), MNT_DETACH) == 0) {
    }
  }
  std::unique_ptr<Backend> open(std::uint64_t limit_bytes = 0) const {
    Result<std::unique_ptr<Backend>> opened = open_at(kv_, limit_bytes);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? *std::move(opened) : nullptr;
  }
  bool mount(std::uint64_t bytes) const {
    return mount_memory(kv_, bytes) && ::chmod(kv_.c_str(), 0700) == 0;
  }
  std::string refusal(const std::string& parameters = "?shared=1") const {
    const auto opened = open_backend("file:" + kv_ + parameters, {});
    return opened ? "" : opened.error().message;
  }
  std::string file_of(const ObjectKey& key) const {
    const std::string name = to_text(key);
    return kv_ + "/" + name.substr(61) + "/" + name;
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& file : fs::recursive_directory_iterator(kv_)) {
      if (!file.is_directory()) names.insert(file.path());
    }
    return names;
  }
  static void set_age(const std::string& file, std::int64_t seconds) {
    const timespec time{::time(nullptr) - seconds, 0}, times[] = {time, time};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, AT_SYMLINK_NOFOLLOW), 0) << file;
  }
  static std::int64_t age(const std::string& file) {
    struct stat status {};
    EXPECT_EQ(::lstat(file.c_str(), &status), 0) << file;
    return ::time(nullptr) - status.st_mtim.tv_sec;
  }
  // What a store does once a second, until it is so.
  static bool comes_to(Backend& backend, const std::function<bool(const Status&)>& is_so) {
    const std::uint64_t until_ns = soon();
    while (base::SteadyClock::read() < until_ns) {
      if (is_so(backend.check())) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
  Code code_of(Backend& backend, Chain& chain) const {
    std::vector<Room> room = chain.room(0);
    Get get{chain.key(0), room};
    const Status whole = backend.get({&get, 1}, soon());
    return !whole ? whole.error().code : get.status ? Code::kInternal : get.status.error().code;
  }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path(), kv_ = folder_ + "/kv";
};

bool says(const std::string& message, std::string_view text) {
  return message.find(text) != std::string::npos;
}

// --- Several hosts ---------------------------------------------------------------------------------

TEST_F(SharedDirectoryTest, WhatOneHostPutsAnotherOneGetsAndRemoves) {
  const auto a = open(), b = open();
  Chain chain(1, 8, 20480, 3), second(2, 8, 20480, 3);
  EXPECT_EQ(put_all(*a, chain), 8u);
  EXPECT_EQ(put_all(*a, second, kOtherSpace), 8u);
  EXPECT_EQ(get_all(*b, chain), std::vector<bool>(8, true));
  EXPECT_EQ(get_all(*b, second, kOtherSpace), std::vector<bool>(8, true));
  const ObjectKey key = chain.key(3);
  EXPECT_TRUE(b->remove({&key, 1}, soon()));
  EXPECT_FALSE(get_all(*a, chain)[3]);
  EXPECT_EQ(files().size(), 16u);  // the mark, and one for each object
}

TEST_F(SharedDirectoryTest, HostsThatPutTheSameObjectsAtTheSameTimeLeaveEachOnce) {
  std::atomic<bool> ends{false};
  const auto write = [&] {
    const auto backend = open();
    Chain chain(1, 16, 65536, 3);
    for (int round = 0; round < 20; ++round) EXPECT_EQ(put_all(*backend, chain), 16u);
  };
  std::thread a(write), b(write);
  std::thread reader([&] {
    const auto backend = open();
    Chain chain(1, 16, 65536, 3);
    std::vector<std::vector<Room>> rooms;
    for (std::size_t i = 0; i < 16; ++i) rooms.push_back(chain.room(i));
    while (!ends) {
      std::vector<Get> gets;
      for (std::size_t i = 0; i < 16; ++i) gets.push_back({chain.key(i), rooms[i]});
      EXPECT_TRUE(backend->get(gets, soon()));
      for (std::size_t i = 0; i < 16; ++i) {
        // Never a part of one.
        EXPECT_TRUE(gets[i].status ? chain.is_right(i)
                                   : gets[i].status.error().code == Code::kNotFound)
            << gets[i].status.error().message;
      }
    }
  });
  a.join();
  b.join();
  ends = true;
  reader.join();
  EXPECT_EQ(files().size(), 17u);
}

TEST_F(SharedDirectoryTest, ManyHostsMayBeginInAnEmptyDirectoryAtTheSameTime) {
  std::vector<std::thread> hosts;
  for (std::uint64_t host = 0; host < 8; ++host) {
    hosts.emplace_back([this, host] {
      const auto backend = open();
      ASSERT_NE(backend, nullptr);
      EXPECT_EQ(put_all(*backend, Chain(host, 2, 4096)), 2u);
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(files().size(), 17u);
}

TEST_F(SharedDirectoryTest, AStoreFindsTheParentThatItHasForgotten) {
  Chain chain(1, 4, 4096);
  const auto put = [&](Store& store, std::size_t first, std::size_t count) {
    std::vector<std::vector<Bytes>> payloads;
    std::vector<BlockPut> blocks;
    for (std::size_t i = first; i < first + count; ++i) payloads.push_back(chain.payload(i));
    for (std::size_t i = 0; i < count; ++i)
      blocks.push_back({chain.hashes()[first + i], payloads[i]});
    const BlockHash* const parent = first == 0 ? nullptr : &chain.hashes()[first - 1];
    return store.put(kSpace, parent, blocks, soon());
  };
  EXPECT_EQ(put(*Store::make(open(), {}), 0, 2), 2u);
  const auto restarted = Store::make(open(), {});
  EXPECT_EQ(restarted->catalogue().objects(), 0u);
  EXPECT_EQ(put(*restarted, 2, 2), 2u);
  EXPECT_EQ(restarted->counts().refused_puts, 0u);
}

// --- What lies there -------------------------------------------------------------------------------

TEST_F(SharedDirectoryTest, ItIsMadeByTheOperatorAndBelongsToOneKind) {
  fs::remove(kv_);
  EXPECT_TRUE(says(refusal(), kv_ + ": is not there")) << refusal();
  EXPECT_FALSE(fs::exists(kv_));
  fs::create_directory(kv_);
  std::ofstream(kv_ + "/notes") << "mine";
  EXPECT_TRUE(says(refusal(), "has other files (notes)")) << refusal();
  fs::remove(kv_ + "/notes");
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(says(refusal(""), "another kind: \"shared\", expected \"storage\"")) << refusal("");
  std::ofstream(kv_ + "/cachalot-storage") << "cachalot shared 2\n";
  EXPECT_TRUE(says(refusal(), "version 2, expected 1")) << refusal();
  std::ofstream(kv_ + "/cachalot-storage") << "cachalot storage 1\n";
  EXPECT_TRUE(says(refusal(), "another kind: \"storage\", expected \"shared\"")) << refusal();
}

TEST_F(SharedDirectoryTest, ParametersOfTheOtherFormAreRefused) {
  EXPECT_TRUE(says(refusal("?shared=1&sync=1"), "has sync=, expected none with shared=1"));
  EXPECT_TRUE(says(refusal("?shared=1&min_free_bytes=9"), "expected limit= with shared=1"));
  EXPECT_TRUE(says(refusal("?limit=1GiB"), "has limit=, expected shared=1 beside it"));
  EXPECT_TRUE(says(refusal("?shared=1&limit=much"), "limit")) << refusal("?shared=1&limit=much");
  EXPECT_TRUE(says(refusal("?shared=1&limit=1000"), "limit=1000, expected at least 1MiB"));
  EXPECT_TRUE(fs::is_empty(kv_));
  EXPECT_EQ(refusal("?shared=1&limit=1.5GiB"), "");
}

TEST_F(SharedDirectoryTest, OthersMayWriteOnlyWhereThatIsAllowed) {
  fs::permissions(kv_, fs::perms(02770));
  EXPECT_TRUE(says(refusal(), "allow_foreign=1")) << refusal();
  Chain chain(1, 1, 4096);
  {
    const auto own = open_backend("file:" + kv_ + "?shared=1&allow_foreign=1", {});
    ASSERT_TRUE(own) << own.error().message;
    const mode_t before = ::umask(0077);
    EXPECT_EQ(put_all(**own, chain), 1u);
    ::umask(before);
  }
  const std::string file = file_of(chain.key(0));
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0640));
  EXPECT_EQ(fs::status(fs::path(file).parent_path()).permissions(), fs::perms(02770));
  EXPECT_EQ(fs::status(kv_ + "/cachalot-storage").permissions(), fs::perms(0640));
  fs::remove_all(kv_);
  fs::create_directory(kv_);
  fs::permissions(kv_, fs::perms(0755));
  EXPECT_EQ(put_all(*open(), chain), 1u);
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0600));
  EXPECT_EQ(fs::status(fs::path(file).parent_path()).permissions(), fs::perms(0700));
}

TEST_F(SharedDirectoryTest, WhatIsNoFileOfOursIsAMissAndAPutReplacesIt) {
  const auto backend = open();
  Chain chain(1, 5, 4096, 2);
  ASSERT_EQ(put_all(*backend, chain), 5u);
  const auto replace = [&](std::size_t i) {
    fs::remove(file_of(chain.key(i)));
    return file_of(chain.key(i));
  };
  const std::string elsewhere = folder_ + "/elsewhere";
  fs::copy_file(file_of(chain.key(0)), elsewhere);
  fs::create_symlink(elsewhere, replace(0));
  ASSERT_EQ(::mkfifo(replace(1).c_str(), 0600), 0);
  ASSERT_EQ(::mknod(replace(2).c_str(), S_IFSOCK | 0600, 0), 0);
  std::ofstream(file_of(chain.key(3)), std::ios::trunc).close();
  EXPECT_EQ(get_all(*backend, chain), (std::vector<bool>{false, false, false, false, true}));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(file_of(chain.key(4)).c_str(), 12345, 12345), 0);
    EXPECT_FALSE(get_all(*backend, chain)[4]);
  }
  Chain again(1, 5, 4096, 2);
  EXPECT_EQ(put_all(*backend, again), 5u);
  EXPECT_EQ(get_all(*backend, again), std::vector<bool>(5, true));
  EXPECT_TRUE(fs::exists(elsewhere));
}

TEST_F(SharedDirectoryTest, AFolderThatIsALinkIsNotFollowed) {
  const auto backend = open();
  Chain chain(1, 1, 4096);
  ASSERT_EQ(put_all(*backend, chain), 1u);
  const fs::path inside = fs::path(file_of(chain.key(0))).parent_path();
  fs::rename(inside, folder_ + "/outside");
  fs::create_directory_symlink(folder_ + "/outside", inside);
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>{false});
  EXPECT_EQ(put_all(*backend, chain), 0u);
  const ObjectKey key = chain.key(0);
  EXPECT_TRUE(backend->remove({&key, 1}, soon()));
  EXPECT_TRUE(fs::exists(folder_ + "/outside/" + to_text(key)));
}

TEST_F(SharedDirectoryTest, AFileThatIsTooLongIsNotReadIntoMemory) {
  const auto backend = open();
  Chain chain(1, 1, 4096);
  ASSERT_EQ(put_all(*backend, chain), 1u);
  fs::resize_file(file_of(chain.key(0)), std::uintmax_t{1} << 42);
  EXPECT_EQ(code_of(*backend, chain), Code::kCorrupt);
  std::optional<ObjectHead> head;
  const ObjectKey key = chain.key(0);
  EXPECT_TRUE(backend->heads({&key, 1}, {&head, 1}, soon()));
  EXPECT_FALSE(head);
}

TEST_F(SharedDirectoryTest, DamageIsReplacedAlsoIfTheStoreHasForgottenTheObject) {
  const auto store = Store::make(open(), {});
  Chain chain(1, 1, 20480);
  ASSERT_EQ(put_all(store->backend(), chain), 1u);
  ASSERT_NE(overwrite_bytes(kv_, Bytes(chain.data(0) + 8192, 64), {}), "");
  std::vector<Room> room = chain.room(0);
  Get get{chain.key(0), room};
  store->get({&get, 1}, soon());
  EXPECT_EQ(get.status.error().code, Code::kCorrupt);
  EXPECT_FALSE(fs::exists(file_of(chain.key(0))));
}

TEST_F(SharedDirectoryTest, WhatIsReadIsYoungAgainOnceAnHour) {
  const auto backend = open();
  Chain chain(1, 2, 4096);
  ASSERT_EQ(put_all(*backend, chain), 2u);
  set_age(file_of(chain.key(0)), 3'700);
  set_age(file_of(chain.key(1)), 3'000);
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(2, true));
  EXPECT_LT(age(file_of(chain.key(0))), 1'000);
  EXPECT_GE(age(file_of(chain.key(1))), 3'000);
  set_age(file_of(chain.key(0)), 3'700);
  const ObjectKey key = chain.key(0);
  bool is_there = false;
  EXPECT_TRUE(backend->exists({&key, 1}, {&is_there, 1}, soon()));
  EXPECT_TRUE(is_there);
  EXPECT_GE(age(file_of(key)), 3'700);
  std::optional<ObjectHead> head;
  EXPECT_TRUE(backend->heads({&key, 1}, {&head, 1}, soon()));
  EXPECT_LT(age(file_of(key)), 1'000);
}

// --- Faults ----------------------------------------------------------------------------------------

TEST_F(SharedDirectoryTest, WhatOthersRemoveIsAMissAndTheDirectoryIsUsedAgainWhenItWasEmptied) {
  const auto backend = open();
  Chain chain(1, 4, 4096);
  ASSERT_EQ(put_all(*backend, chain), 4u);
  fs::remove(file_of(chain.key(1)));
  fs::remove_all(fs::path(file_of(chain.key(2))).parent_path());
  EXPECT_EQ(get_all(*backend, chain), (std::vector<bool>{true, false, false, true}));
  for (const auto& one : fs::directory_iterator(kv_)) fs::remove_all(one.path());
  fs::create_directory(kv_ + "/abc");  // of a put meanwhile
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(4, false));
  EXPECT_TRUE(comes_to(
      *backend, [&](const Status& now) { return now && fs::exists(kv_ + "/cachalot-storage"); }));
  Chain again(1, 4, 4096);
  EXPECT_EQ(put_all(*backend, again), 4u);
  EXPECT_EQ(get_all(*backend, again), std::vector<bool>(4, true));
}

TEST_F(SharedDirectoryTest, NothingIsWrittenIntoAMountPointWhoseFileSystemIsGone) {
  if (!mount(8u << 20)) GTEST_SKIP() << "no right to mount";
  const auto backend = open();
  Chain chain(1, 2, 4096), second(2, 2, 4096);
  ASSERT_EQ(put_all(*backend, chain), 2u);
  ASSERT_EQ(::umount2(kv_.c_str(), MNT_DETACH), 0);
  std::string why;
  EXPECT_TRUE(comes_to(*backend, [&](const Status& now) {
    if (!now) why = now.error().message;
    return !now;
  }));
  EXPECT_TRUE(says(why, kv_ + ": has no file cachalot-storage any more")) << why;
  (void)put_all(*backend, second);
  EXPECT_TRUE(fs::is_empty(kv_));
  // Another one with a mark, as the same one mounted again.
  ASSERT_TRUE(mount(8u << 20));
  std::ofstream(kv_ + "/cachalot-storage") << "cachalot shared 1\n";
  EXPECT_TRUE(comes_to(*backend, [](const Status& now) { return now.ok(); }));
  EXPECT_EQ(put_all(*backend, second), 2u);
  EXPECT_EQ(get_all(*backend, second), std::vector<bool>(2, true));
  EXPECT_TRUE(fs::exists(file_of(second.key(0))));
}

TEST_F(SharedDirectoryTest, AFileSystemThatIsReadOnlyIsRead) {
  if (!mount(8u << 20)) GTEST_SKIP() << "no right to mount";
  Chain chain(1, 2, 4096), second(2, 2, 4096);
  const auto writer = open();
  ASSERT_EQ(put_all(*writer, chain), 2u);
  set_age(file_of(chain.key(0)), 3'700);
  ASSERT_EQ(::mount("none", kv_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  const auto reader = open();
  ASSERT_NE(reader, nullptr);
  for (Backend* const one : {writer.get(), reader.get()}) {
    EXPECT_EQ(get_all(*one, chain), std::vector<bool>(2, true));
    std::vector<Bytes> body = second.body(0);
    Put put{second.head(0), body};
    EXPECT_TRUE(one->put({&put, 1}, soon()));
    ASSERT_FALSE(put.status);
    EXPECT_EQ(put.status.error().code, Code::kPermission) << put.status.error().message;
    EXPECT_TRUE(says(put.status.error().message, "Read-only")) << put.status.error().message;
  }
}

TEST_F(SharedDirectoryTest, WithoutDescriptorsItIsFull) {
  const auto backend = open();
  Chain chain(1, 1, 4096);
  ASSERT_EQ(put_all(*backend, chain), 1u);
  std::vector<os::FileDescriptor> all;
  while (all.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC))) {
  }
  EXPECT_EQ(code_of(*backend, chain), Code::kNoSpace);
  all.clear();
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>{true});
}

// The store of a host that has just begun knows nothing that it could remove.
TEST_F(SharedDirectoryTest, AFullDirectoryOfOthersMakesRoomForAHostThatHasJustBegun) {
  if (!mount(4u << 20)) GTEST_SKIP() << "no right to mount";
  std::vector<ObjectKey> old;
  {
    const auto before = open();
    for (std::uint64_t name = 1;; ++name) {
      Chain chain(name, 1, 65536);
      if (put_all(*before, chain) == 0) break;
      old.push_back(chain.key(0));
    }
  }
  ASSERT_GT(old.size(), 40u);
  for (std::size_t i = 0; i < old.size(); ++i)
    set_age(file_of(old[i]), static_cast<std::int64_t>(1'000 - i));
  const auto backend = open();
  Chain chain(1000, 4, 65536);
  EXPECT_EQ(put_all(*backend, chain), 0u);
  EXPECT_EQ(put_all(*backend, chain), 4u);
  EXPECT_EQ(get_all(*backend, chain), std::vector<bool>(4, true));
  EXPECT_FALSE(fs::exists(file_of(old.front())));
  EXPECT_TRUE(fs::exists(file_of(old.back())));
  for (const std::string& file : files()) EXPECT_FALSE(file.ends_with(".new")) << file;
}

// --- Sweep -----------------------------------------------------------------------------------------

TEST_F(SharedDirectoryTest, UnfinishedFilesOfDeadWritersGoAfterAnHourAndOthersStay) {
  const auto backend = open();
  Chain chain(1, 1, 4096);
  ASSERT_EQ(put_all(*backend, chain), 1u);
  const std::string object = file_of(chain.key(0));
  const std::string dead = object + ".0123456789abcdef.new",
                    living = object + ".fedcba9876543210.new", foreign = object + ".new";
  for (const std::string& file : {dead, living, foreign}) std::ofstream(file) << "part";
  for (const std::string& file : {dead, foreign, object}) set_age(file, 100'000);
  const Result<Directory> root =
      Directory::open(kv_, os::Owners::kTrusted, "shared", Directory::Use::kTogether);
  ASSERT_TRUE(root);
  Sweep sweep(0);
  for (std::uint32_t i = 0; i < kObjectFolders; ++i) sweep.visit(*root);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living) && fs::exists(foreign) && fs::exists(object));
}

TEST_F(SharedDirectoryTest, ASweepKeepsTheYoungestThatHaveRoom) {
  constexpr std::size_t kObjects = 400;
  const auto backend = open();
  Chain chain(1, kObjects, 4096);
  ASSERT_EQ(put_all(*backend, chain), kObjects);
  for (std::size_t i = 0; i < kObjects; ++i)
    set_age(file_of(chain.key(i)), static_cast<std::int64_t>(10'000 - 10 * i));
  const Result<Directory> root =
      Directory::open(kv_, os::Owners::kTrusted, "shared", Directory::Use::kTogether);
  ASSERT_TRUE(root);
  const std::uint64_t all_bytes = kObjects * (4096 + sizeof(ObjectHead));
  Sweep roomy(2 * all_bytes), narrow(all_bytes / 2);
  for (std::uint32_t i = 0; i < kObjectFolders; ++i) roomy.visit(*root);
  EXPECT_EQ(files().size(), kObjects + 1);
  EXPECT_NEAR(static_cast<double>(roomy.space().used), static_cast<double>(all_bytes), 100);
  // Two hosts at the same time, which begin at different folders.
  Sweep other(all_bytes / 2);
  for (std::uint32_t i = 0; i < 3 * kObjectFolders; ++i) {
    narrow.visit(*root);
    other.visit(*root);
  }
  const std::size_t left = files().size() - 1;
  EXPECT_LE(left, kObjects / 2);
  EXPECT_GE(left, kObjects / 3);
  for (std::size_t i = kObjects - kObjects / 4; i < kObjects; ++i)
    EXPECT_TRUE(fs::exists(file_of(chain.key(i)))) << i;
  EXPECT_FALSE(fs::exists(file_of(chain.key(0))));
  EXPECT_LE(narrow.space().used, all_bytes / 2);
}

TEST_F(SharedDirectoryTest, PutsKeepItNearItsLimit) {
  constexpr std::uint64_t kLimit = 4u << 20;
  const auto store = Store::make(open(kLimit), {});
  for (std::uint64_t name = 1; name <= 200; ++name) {
    Chain chain(name, 8, 8192);
    std::vector<std::vector<Bytes>> payloads;
    std::vector<BlockPut> blocks;
    for (std::size_t i = 0; i < 8; ++i) payloads.push_back(chain.payload(i));
    for (std::size_t i = 0; i < 8; ++i) blocks.push_back({chain.hashes()[i], payloads[i]});
    EXPECT_EQ(store->put(kSpace, nullptr, blocks, soon()), 8u);
  }
  // 13 MiB were put, in so many objects that a sample of folders says something. The sweep may still be at work, and what was put since it saw a folder it does not know.
  std::uint64_t bytes = 0;
  EXPECT_TRUE(comes_to(store->backend(), [&](const Status&) {
    bytes = 0;
    for (const std::string& file : files()) {
      std::error_code gone;  // meanwhile
      const std::uintmax_t size = fs::file_size(file, gone);
      if (!gone) bytes += size;
    }
    return bytes <= kLimit + kLimit / 10;
  })) << bytes;
}

}  // namespace
}  // namespace cachalot::storage

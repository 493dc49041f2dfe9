#include "storage/rocksdb/rocksdb_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "os/child.h"
#include "storage/backends.h"
#include "storage/value.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

BackendUnderTest conformant(const char* name, std::uint64_t memtable_bytes,
                            std::uint64_t most_bytes) {
  const auto open = [=](const std::string& folder) {
    return open_rocksdb_backend({folder + "/objects", false, memtable_bytes});
  };
  return {name, open, true, most_bytes};
}

INSTANTIATE_TEST_SUITE_P(Rocksdb, BackendConformance,
                         ::testing::Values(conformant("rocksdb", 8u << 20, 24u << 20),
                                           // small: gets also read blob files, and space comes back
                                           conformant("rocksdb_small_memtable", 1u << 20,
                                                      12u << 20)),
                         name_of_backend);

class RocksdbRig final : public FaultRig {
 public:
  explicit RocksdbRig(std::string folder) : folder_(std::move(folder)) {}
  static std::unique_ptr<FaultRig> make(const std::string& folder) {
    return std::make_unique<RocksdbRig>(folder);
  }
  static std::unique_ptr<FaultRig> make_small(const std::string& folder) {
    return mount_memory(folder, 48u << 20) ? make(folder) : nullptr;
  }
  // A small memtable: objects are soon in files.
  Result<std::unique_ptr<Backend>> open() override {
    return open_rocksdb_backend({folder_ + "/objects", false, 64 << 10});
  }
  bool shares_files() const override { return true; }
  void begin(Fault) override { fill_up(folder_ + "/filler"); }
  void end(Fault) override { std::filesystem::remove(folder_ + "/filler"); }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    flush();
    const Bytes body(chain.data(i), chain.bytes());
    std::string file;
    if (fault == Fault::kBitFlipped) file = overwrite_bytes(folder_, body.subspan(8192), {});
    if (fault == Fault::kTruncated) file = cut_off(folder_, body);
    if (fault == Fault::kSwapped) {
      // With its checksum: only the seal tells.
      file = "values";
      change([&](rocksdb::DB& database, rocksdb::ColumnFamilyHandle* values) {
        ObjectHead head = chain.head(i);
        std::string value(reinterpret_cast<const char*>(&head), kHeadBytes);
        for (const Bytes& piece : other.body(0))
          value.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        const rocksdb::Slice key(reinterpret_cast<const char*>(&head.key), sizeof head.key);
        EXPECT_TRUE(database.Put({}, values, key, value).ok());
      });
    }
    EXPECT_EQ(std::filesystem::path(file).extension(), fault == Fault::kSwapped ? "" : ".blob");
  }

 private:
  using Change = std::function<void(rocksdb::DB&, rocksdb::ColumnFamilyHandle*)>;
  // Opens the database as RocksDB has it.
  void change(const Change& change) {
    rocksdb::ColumnFamilyOptions blobs;
    blobs.enable_blob_files = true;
    std::vector<rocksdb::ColumnFamilyHandle*> families;
    rocksdb::DB* database = nullptr;
    const rocksdb::Status opened = rocksdb::DB::Open(
        {}, folder_ + "/objects/db", {{"default", {}}, {"heads", {}}, {"values", blobs}}, &families,
        &database);
    ASSERT_TRUE(opened.ok()) << opened.ToString();
    change(*database, families[2]);
    for (rocksdb::ColumnFamilyHandle* const family : families)
      database->DestroyColumnFamilyHandle(family);
    delete database;
  }
  void flush() {
    change([](rocksdb::DB& database, rocksdb::ColumnFamilyHandle* values) {
      EXPECT_TRUE(database.Flush({}, values).ok());
    });
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Rocksdb, StorageFull,
                         ::testing::Values(RigUnderTest{"rocksdb", RocksdbRig::make_small,
                                                        Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(
    Rocksdb, StorageDamage,
    ::testing::Values(RigUnderTest{"rocksdb", RocksdbRig::make, Fault::kBitFlipped},
                      RigUnderTest{"rocksdb", RocksdbRig::make, Fault::kTruncated},
                      RigUnderTest{"rocksdb", RocksdbRig::make, Fault::kSwapped}),
    name_of_rig);

class RocksdbTest : public ::testing::Test {
 protected:
  Status open() {
    backend_.reset();
    CACHALOT_TRY_ASSIGN(backend_, open_backend("rocksdb:" + folder_ + "/objects", {}));
    return {};
  }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<Backend> backend_;
};

TEST_F(RocksdbTest, ASecondOwnerIsRefused) {
  ASSERT_TRUE(open());
  const Result<std::unique_ptr<Backend>> second =
      open_backend("rocksdb:" + folder_ + "/objects?sync=1", {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy) << second.error().message;
}

TEST_F(RocksdbTest, DirectoriesOfOthersAreLeftAlone) {
  const std::string path = folder_ + "/objects";
  {
    const Result<std::unique_ptr<Backend>> files = open_backend("file:" + path, {});
    ASSERT_TRUE(files);
    ASSERT_EQ(put_all(**files, Chain(1, 1, 4096)), 1u);
  }
  const Status of_files = open();
  ASSERT_FALSE(of_files);
  EXPECT_EQ(of_files.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(of_files.error().message).find("belongs to another kind"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path + "/db"));
  std::ofstream(path + "/cachalot-storage") << "cachalot rocksdb 9\n";
  const Status of_version = open();
  ASSERT_FALSE(of_version);
  EXPECT_EQ(of_version.error().code, Code::kVersionMismatch) << of_version.error().message;
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  std::ofstream(path + "/thesis.tex") << "text";
  const Status other = open();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kInvalidArgument) << other.error().message;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
}

TEST_F(RocksdbTest, ADatabaseThatIsDamagedIsNamed) {
  ASSERT_TRUE(open());
  backend_.reset();
  std::ofstream(folder_ + "/objects/db/CURRENT") << "nonsense";
  const Status opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kCorrupt) << opened.error().message;
  EXPECT_NE(std::string(opened.error().message).find(folder_ + "/objects"), std::string::npos);
}

// The list reads no bodies: they may even be gone.
TEST_F(RocksdbTest, TheListReadsHeadsOnly) {
  Chain chain(1, 8, 65536, 2);
  ASSERT_TRUE(open_rocksdb_backend({folder_ + "/objects", false, 64 << 10}));
  {
    Result<std::unique_ptr<Backend>> small =
        open_rocksdb_backend({folder_ + "/objects", false, 64 << 10});
    ASSERT_TRUE(small);
    ASSERT_EQ(put_all(**small, chain), 8u);
    ASSERT_EQ(put_all(**small, Chain(2, 8, 65536, 2)), 8u);  // so that the first ones are in files
  }
  ASSERT_TRUE(open());
  std::size_t blobs = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/objects/db")) {
    if (file.path().extension() != ".blob") continue;
    std::filesystem::resize_file(file.path(), 0);
    ++blobs;
  }
  ASSERT_GT(blobs, 0u);
  std::size_t heads = 0;
  EXPECT_TRUE(backend_->list([&](const ObjectHead&) { return ++heads != 0; }, soon()));
  EXPECT_EQ(heads, 16u);
}

// What the killed process runs: a process of its own, because threads of RocksDB do not survive a fork.
TEST(RocksdbChild, DISABLED_PutsUntilItIsKilled) {
  const char* const folder = std::getenv("CACHALOT_TEST_FOLDER");
  ASSERT_NE(folder, nullptr);
  Result<std::unique_ptr<Backend>> backend = open_rocksdb_backend({folder, false, 1u << 20});
  ASSERT_TRUE(backend) << backend.error().message;
  for (std::uint64_t name = std::strtoull(std::getenv("CACHALOT_TEST_FIRST"), nullptr, 10);;
       ++name) {
    const Chain chain(name, 8, 20480, 2);
    ASSERT_EQ(put_all(**backend, chain), 8u);
    ASSERT_EQ(write(3, &name, sizeof name), static_cast<ssize_t>(sizeof name));
    const ObjectKey key = chain.key(7);
    if (name % 3 == 0) {
      EXPECT_TRUE((*backend)->remove({&key, 1}, soon()));
    }
  }
}

TEST_F(RocksdbTest, WhatWasReportedAsStoredSurvivesKill) {
  base::Rng random(20261124);
  std::vector<std::uint64_t> stored;
  std::uint64_t next = 1;
  for (int kill = 0; kill < 8 || stored.size() < 20; ++kill) {
    int said[2];
    ASSERT_EQ(pipe2(said, O_CLOEXEC), 0);
    Result<os::Child> child = os::Child::start([&] {
      ::setenv("CACHALOT_TEST_FOLDER", (folder_ + "/objects").c_str(), 1);
      ::setenv("CACHALOT_TEST_FIRST", std::to_string(next).c_str(), 1);
      if (said[1] == 3) ::fcntl(3, F_SETFD, 0);
      if (said[1] != 3) ::dup2(said[1], 3);
      ::execl("/proc/self/exe", "test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
              "--gtest_filter=RocksdbChild.*", nullptr);
      return 127;
    });
    ASSERT_TRUE(child);
    ::close(said[1]);
    std::uint64_t name = 0;
    // The first puts of the process, then any moment.
    const bool has_begun = read(said[0], &name, sizeof name) == sizeof name;
    ASSERT_TRUE(has_begun) << child->wait()->text();
    stored.push_back(name);
    usleep(static_cast<useconds_t>(random.below(60'000)));
    child->send(SIGKILL);
    ASSERT_EQ(child->wait()->signal, SIGKILL);
    while (read(said[0], &name, sizeof name) == sizeof name) stored.push_back(name);
    next = stored.back() + 2;  // the next one may be half there
    ::close(said[0]);
  }
  ASSERT_TRUE(open());
  for (const std::uint64_t name : stored) {
    Chain chain(name, 8, 20480, 2);
    std::vector<bool> got = get_all(*backend_, chain);
    got[7] = true;  // some of these were removed
    EXPECT_EQ(got, std::vector<bool>(8, true)) << "chain " << name;
  }
}

}  // namespace
}  // namespace cachalot::storage

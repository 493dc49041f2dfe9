#include "transfer/registry/file/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>

#include <csignal>
#include <fstream>
#include <set>

#include "base/log.h"
#include "testing/os/scratch_folder.h"
#include "testing/transfer/registries.h"

namespace cachalot::transfer {
namespace {

class FilePlace final : public RegistryPlace {
 public:
  std::string uri() const override { return "file:" + folder_.path() + "/peers"; }
  void remove_record(const std::string& name) override {
    EXPECT_TRUE(std::filesystem::remove(folder_.path() + "/peers/" + name + ".peer"));
  }

 private:
  const os::ScratchFolder folder_{"/dev/shm"};
};

INSTANTIATE_TEST_SUITE_P(File, RegistryConformance,
                         ::testing::Values(PlaceUnderTest{
                             "file", [] { return std::make_unique<FilePlace>(); }}),
                         name_of_place);

class FileRegistry : public ::testing::Test {
 protected:
  std::string path(const std::string& file) const { return folder_.path() + "/peers/" + file; }
  std::unique_ptr<Registry> open() const {
    return transfer::open("file:" + folder_.path() + "/peers");
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path(file), std::ios::binary) << text;
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/peers"))
      names.insert(entry.path().filename());
    return names;
  }
  // As a live peer would.
  os::FileLock lock(const std::string& file) const {
    const os::FileDescriptor opened(::open(path(file).c_str(), O_RDWR | O_CLOEXEC));
    Result<os::FileLock> lock = os::FileLock::try_lock(opened.get(), 0);
    EXPECT_TRUE(lock) << text_of(lock);
    return *std::move(lock);
  }

  const os::ScratchFolder folder_{"/dev/shm"};
};

TEST_F(FileRegistry, ItsDirectoryIsOnlyItsUsersAndIsMadeAtNeed) {
  const auto peer = open();
  struct stat status {};
  ASSERT_EQ(::stat(path("").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0700u);
  ASSERT_TRUE(peer->publish(record_of("a"), soon()));
  ASSERT_EQ(::stat(path("a.peer").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  // Removed with all that is in it, as a cleaner of temporary files does.
  std::filesystem::remove_all(path(""));
  const auto reader = open();
  EXPECT_TRUE(comes_true([&] { return reader->find("a", soon()).ok(); }));
  EXPECT_TRUE(peer->is_published());
}

TEST_F(FileRegistry, ADirectoryThatOthersMayChangeIsRefusedUnlessTheUriSaysSo) {
  const std::string uri = "file:" + folder_.path() + "/peers";
  (void)open();
  for (const unsigned mode : {0777u, 0720u, 01777u}) {
    ASSERT_EQ(::chmod(path("").c_str(), mode), 0);
    const auto refused = open_registry(uri);
    EXPECT_TRUE(failed_with(refused, Code::kPermission)) << text_of(refused);
  }
  const auto shared = transfer::open(uri + "?shared=1");
  ASSERT_TRUE(shared->publish(record_of("a"), soon()));
  struct stat status {};
  ASSERT_EQ(::stat(path("a.peer").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0644u);
  ASSERT_EQ(::chmod(path("").c_str(), 0700), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  ASSERT_EQ(::chown(path("").c_str(), 12345, 0), 0);
  const auto refused = open_registry(uri);
  ASSERT_TRUE(failed_with(refused, Code::kPermission)) << text_of(refused);
  EXPECT_NE(std::string(refused.error().message).find("user 12345 owns"), std::string::npos);
}

TEST_F(FileRegistry, AStoppedPeerKeepsItsRecordAndItsName) {
  const auto reader = open();
  const PeerRecord record = record_of("a");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  Result<os::Child> stopped = os::Child::start([&] {
    const auto peer = open();
    if (!peer->publish(record, soon()) || ::write(ready[1], "1", 1) != 1) return 1;
    while (true) pause();
  });
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  close(ready[0]);
  close(ready[1]);
  stopped->send(SIGSTOP);
  EXPECT_EQ(*reader->find("a", soon()), record);
  EXPECT_TRUE(failed_with(reader->publish(record_of("a"), in_s(1)), Code::kBusy));
}

TEST_F(FileRegistry, TheRecordOfADeadPeerIsRemovedByItsReaders) {
  const auto reader = open();
  write("a.peer", encode(record_of("a")));
  write("b.peer", encode(record_of("b")));
  write("c.peer", "garbage");
  EXPECT_TRUE(failed_with(reader->find("a", soon()), Code::kNotFound));
  EXPECT_EQ(files().count("a.peer"), 0u);
  EXPECT_TRUE(reader->list("", soon())->empty());
  EXPECT_EQ(files(), std::set<std::string>{".lock"});
}

TEST_F(FileRegistry, WhileTheDirectoryIsLockedReadersGoOnAndADeadRecordStays) {
  const auto peer = open(), late = open();
  ASSERT_TRUE(peer->publish(record_of("a"), soon()));
  write("dead.peer", encode(record_of("dead")));
  const os::FileLock held = lock(".lock");
  EXPECT_TRUE(peer->find("a", soon()));
  EXPECT_TRUE(failed_with(peer->find("dead", soon()), Code::kNotFound));
  EXPECT_EQ(files().count("dead.peer"), 1u);
  const Status published = late->publish(record_of("b"), in_s(1));
  EXPECT_TRUE(failed_with(published, Code::kTimeout)) << text_of(published);
}

TEST_F(FileRegistry, ReadersThatRemoveDeadRecordsNeverRemoveALiveOne) {
  (void)open();
  std::vector<os::Child> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(*os::Child::start([&] {
      const auto reader = open();
      while (true) (void)reader->find("a", soon());
      return 0;
    }));
  }
  for (int round = 0; round < 400; ++round) {
    Result<os::Child> peer = os::Child::start([&]() -> int {
      const auto store = FileStore::open(folder_.path() + "/peers", false);
      const PeerRecord record = record_of("a");
      if (!store || !(*store)->hold(record, soon())) _exit(1);
      for (int look = 0; look < 20; ++look) {
        const Result<PeerRecord> found = (*store)->find("a", soon());
        if (!found || *found != record) _exit(2);
      }
      _exit(0);  // as a killed process: the record stays
    });
    ASSERT_TRUE(peer);
    ASSERT_EQ(peer->wait()->exit_code, 0) << "round " << round;
  }
}

TEST_F(FileRegistry, AWriterThatWasKilledLeavesNothingInTheWay) {
  const auto peer = open();
  write(".new." + std::to_string(::geteuid()), "half a rec");
  ASSERT_TRUE(peer->publish(record_of("a"), soon()));
  EXPECT_EQ(files(), (std::set<std::string>{".lock", "a.peer"}));
}

TEST_F(FileRegistry, NoNameLeadsOutOfTheDirectory) {
  std::vector<std::unique_ptr<Registry>> peers;
  for (const char* name : {"..", ".", "../b", "/b", "../../dev/shm/b"}) {
    peers.push_back(open());
    ASSERT_TRUE(peers.back()->publish(record_of(name), soon()));
  }
  EXPECT_EQ(files().size(), 6u);
  EXPECT_EQ(files().count("..%2Fb.peer"), 1u);
  std::size_t beside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    beside += entry.path().filename() != "peers";
  EXPECT_EQ(beside, 0u);
}

TEST_F(FileRegistry, RecordsThatAreNoneAreOneErrorEachAndHideNoOther) {
  const auto peer = open();
  ASSERT_TRUE(peer->publish(record_of("good"), soon()));
  const std::vector<std::pair<std::string, std::string>> texts{
      {"garbage", "\xff\x00{{{"},
      {"empty", ""},
      {"long", std::string(1u << 20, '[')},
      {"number", "{\"version\": 1, \"name\": 7}"},
      {"other", encode(record_of("another"))},
  };
  std::vector<os::FileLock> locks;
  for (const auto& [name, text] : texts) {
    write(name + ".peer", text);
    locks.push_back(lock(name + ".peer"));
    const auto found = peer->find(name, soon());
    ASSERT_TRUE(failed_with(found, Code::kCorrupt)) << name << ": " << text_of(found);
    EXPECT_NE(std::string(found.error().message).find("peer \"" + name + "\""), std::string::npos)
        << found.error().message;
    const Status taken = open()->publish(record_of(name), in_s(1));
    EXPECT_TRUE(failed_with(taken, Code::kBusy)) << text_of(taken);
  }
  std::filesystem::create_symlink("/etc/passwd", path("link.peer"));
  std::filesystem::create_directory(path("folder.peer"));
  ASSERT_EQ(::mkfifo(path("fifo.peer").c_str(), 0600), 0);
  for (const char* name : {"link", "folder", "fifo"}) {
    const auto found = peer->find(name, soon());
    EXPECT_TRUE(failed_with(found, Code::kIo)) << name << ": " << text_of(found);
  }
  write("%zz.peer", "x");
  write("%2e.peer", "x");  // "." is written as itself
  testing::internal::CaptureStderr();
  base::set_log_level(base::LogLevel::kWarn);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(peer->list("", soon())->size(), 1u);
  const std::string log = testing::internal::GetCapturedStderr();
  base::set_log_level(base::LogLevel::kOff);
  const auto lines = std::count(log.begin(), log.end(), '\n');
  EXPECT_GE(lines, 1) << "a record that is none is not told";
  EXPECT_LE(lines, 4) << log;
}

TEST(RegistryUri, IsChecked) {
  const auto refusal = [](const std::string& uri) {
    const auto opened = open_registry(uri);
    EXPECT_TRUE(failed_with(opened, Code::kInvalidArgument)) << uri << ": " << text_of(opened);
    return text_of(opened);
  };
  EXPECT_NE(refusal("peers").find("registry \"peers\""), std::string::npos);
  EXPECT_NE(refusal("pool:/dev/shm/kv").find("expected file, etcd or etcds"), std::string::npos);
  EXPECT_NE(refusal("file:/tmp/x?shraed=1").find("known: shared"), std::string::npos);
  refusal("file:");
  refusal("file:/tmp/x?shared=2");
  EXPECT_TRUE(failed_with(open_registry("file:/no/such/folder"), Code::kNotFound));
  EXPECT_FALSE(open_registry("file:/dev/null"));
}

}  // namespace
}  // namespace cachalot::transfer

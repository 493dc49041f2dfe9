// `cachalot serve --storage-key-file`: what lies on the disk, and what another key reads of it.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "program.h"

namespace cachalot::process_test {
namespace {

class StorageCommand : public ProcessTest {
 protected:
  static constexpr std::size_t kBytes = 4000;

  std::string key_file(const std::string& name, char letter) const {
    const std::string file = write(name, std::string(32, letter));
    EXPECT_EQ(::chmod(file.c_str(), 0600), 0);
    return file;
  }
  // @param key  a key file, or empty: none
  Arguments serve(const std::string& pool, const std::string& key) const {
    Arguments all = {"serve",
                     "--pool",
                     path(pool),
                     "--create",
                     "--block-bytes",
                     "4096",
                     "--capacity-blocks",
                     "16",
                     "--storage",
                     "file:" + path("objects")};
    if (!key.empty()) all.insert(all.end(), {"--storage-key-file", key});
    return all;
  }
  // What the storage has on its disk.
  std::string stored() const {
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
      const std::string file = path("objects/segment-0000000" + std::to_string(i));
      if (std::filesystem::exists(file)) bytes += read(file);
    }
    return bytes;
  }
  // Puts a block, and waits until it is on the disk.
  void store(const std::string& pool, const std::string& content) const {
    expect_done(run({"put", "prompt", "--pool", path(pool)}, {.in = content}));
    wait_until([&] { return stored().find("CchObj1") != std::string::npos; });
  }
  static bool wait_until(const std::function<bool()>& is_done) {
    for (int i = 0; i < 400; ++i) {
      if (is_done()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  // How many pieces of 16 bytes of `content` are somewhere in `bytes`.
  static int pieces_of(const std::string& content, const std::string& bytes) {
    int pieces = 0;
    for (std::size_t at = 0; at + 16 <= content.size(); at += 16)
      pieces += bytes.find(content.substr(at, 16)) != std::string::npos;
    return pieces;
  }
};

TEST_F(StorageCommand, WithoutAKeyThePlaintextIsOnTheDisk) {
  const std::string content = noise(kBytes, 1);
  Serving keeper(serve("kv", ""));
  ASSERT_TRUE(keeper.is_ready());
  store("kv", content);
  EXPECT_EQ(pieces_of(content, stored()), static_cast<int>(kBytes / 16));
}

TEST_F(StorageCommand, ANewPoolFindsWhatStorageHasBeforeAnyPut) {
  const std::string content = noise(kBytes, 1);
  {
    Serving keeper(serve("kv", ""));
    ASSERT_TRUE(keeper.is_ready());
    store("kv", content);
    keeper.send(SIGKILL);
    (void)keeper.wait();
  }
  Serving keeper(serve("new", ""));
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_TRUE(wait_until([&] {
    return run({"lookup", "prompt", "--pool", path("new")}).out.find("stored") != std::string::npos;
  }));
  const Outcome mistyped = run({"lookup", "prompt", "--namespace", "no", "--pool", path("new")});
  EXPECT_EQ(mistyped.out.find("stored"), std::string::npos);
  EXPECT_TRUE(run({"get", "prompt", "--pool", path("new")}).out == content);
}

TEST_F(StorageCommand, WithAKeyNoPlaintextIsOnTheDiskAndANewPoolReadsIt) {
  const std::string content = noise(kBytes, 1), key = key_file("key", 'k');
  {
    Serving keeper(serve("kv", key));
    ASSERT_TRUE(keeper.is_ready());
    store("kv", content);
    keeper.send(SIGKILL);
    (void)keeper.wait();
  }
  const std::string bytes = stored();
  ASSERT_NE(bytes.find("CchObj1"), std::string::npos);
  EXPECT_EQ(pieces_of(content, bytes), 0);
  EXPECT_EQ(bytes.find(std::string(32, 'k')), std::string::npos);
  Serving keeper(serve("new", key));
  ASSERT_TRUE(keeper.is_ready());
  Outcome got;
  EXPECT_TRUE(wait_until([&] {
    got = run({"get", "prompt", "--pool", path("new")});
    return got.exit_code == 0;
  }));
  EXPECT_TRUE(got.out == content);  // not shown: it is noise
}

TEST_F(StorageCommand, AnotherKeyIsMissesAndOneErrorAndTakesTheStorageOver) {
  const std::string content = noise(kBytes, 1), other = noise(kBytes, 2);
  {
    Serving keeper(serve("kv", key_file("key", 'k')));
    ASSERT_TRUE(keeper.is_ready());
    for (const std::string name : {"prompt", "second"})
      expect_done(run({"put", name, "--pool", path("kv")}, {.in = content}));
    ASSERT_TRUE(wait_until([&] {
      const std::string bytes = stored();
      const std::size_t first = bytes.find("CchObj1");
      return first != std::string::npos && bytes.find("CchObj1", first + 1) != std::string::npos;
    }));
    keeper.send(SIGKILL);
    (void)keeper.wait();
  }
  Serving keeper(serve("new", key_file("other", 'o')));
  ASSERT_TRUE(keeper.is_ready());
  // Known to be stored: so the storage has joined.
  ASSERT_TRUE(wait_until([&] {
    return run({"lookup", "prompt", "--pool", path("new")}).out.find("stored") != std::string::npos;
  }));
  for (const std::string name : {"prompt", "second", "prompt"}) {
    const Outcome got = run({"get", name, "--pool", path("new")});
    EXPECT_EQ(got.exit_code, 1) << got.err;
    EXPECT_EQ(got.out, "");
  }
  expect_done(run({"put", "prompt", "--pool", path("new")}, {.in = other}));
  EXPECT_TRUE(run({"get", "prompt", "--pool", path("new")}).out == other);
  expect_done(run({"stop", path("new")}));
  const Outcome ended = keeper.wait();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_NE(ended.err.find("key"), std::string::npos);
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

TEST_F(StorageCommand, ASpentBudgetWritesNoMore) {
  Arguments flags = serve("kv", "");
  flags.insert(flags.end(), {"--storage-write-budget", "1KB"});
  Serving keeper(flags);
  ASSERT_TRUE(keeper.is_ready());
  const std::string first = noise(kBytes, 1), second = noise(kBytes, 2);
  store("kv", first);  // an hour has 41 bytes: the first is admitted, and leaves a debt of days
  expect_done(run({"put", "second", "--pool", path("kv")}, {.in = second}));
  EXPECT_TRUE(wait_until([&] { return pieces_of(first, stored()) != 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(pieces_of(second, stored()), 0);
  EXPECT_TRUE(run({"get", "second", "--pool", path("kv")}).out == second);
}

TEST_F(StorageCommand, AFileThatIsNoSegmentIsNamedAndTheOthersServe) {
  const std::string content = noise(kBytes, 1);
  {
    Serving keeper(serve("kv", ""));
    ASSERT_TRUE(keeper.is_ready());
    store("kv", content);
    keeper.send(SIGKILL);
    (void)keeper.wait();
  }
  std::filesystem::copy_file(path("objects/segment-00000000"), path("objects/segment-00000001"));
  std::fstream(path("objects/segment-00000001")).seekp(8).put(9);  // the version
  std::filesystem::create_symlink("segment-00000000", path("objects/segment-00000002"));
  std::filesystem::create_directory(path("objects/segment-00000003"));
  Serving keeper(serve("new", ""));
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_TRUE(wait_until([&] {
    return run({"get", "prompt", "--pool", path("new")}).out == content;
  }));
  expect_done(run({"stop", path("new")}));
  const std::string log = keeper.wait().err;
  for (const char* const says : {"segment-00000001: version 9, expected 1",
                                 "segment-00000002: is a link", "segment-00000003: is a directory"})
    EXPECT_NE(log.find(says), std::string::npos) << log;
}

TEST_F(StorageCommand, ServeRaisesItsLimitOfDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{std::min<rlim_t>(before.rlim_cur, 256), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  Serving keeper(serve("kv", ""));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(keeper.is_ready());
  const std::string& line = keeper.ready_line();
  const int pid = std::stoi(line.substr(line.find("pid=") + 4));
  rlimit of_keeper{};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &of_keeper), 0);
  EXPECT_EQ(of_keeper.rlim_cur, std::min<rlim_t>(before.rlim_max, 1u << 20));
}

}  // namespace
}  // namespace cachalot::process_test

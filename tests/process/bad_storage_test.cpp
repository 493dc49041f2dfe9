// Wrong flags and files of the storage behind a pool: one clear error each, no pool and no directory.
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "program.h"
#include "testing/storage/server.h"

namespace cachalot::process_test {
namespace {

constexpr int kUsage = 2, kRefused = 3;

class BadStorage : public ProcessTest {
 protected:
  static Arguments serve(const std::string& pool, const Arguments& flags) {
    Arguments all = {
        "serve", "--pool", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "16"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  // `serve --create` with these flags fails like this, and leaves nothing.
  void expect_refused(const Arguments& flags, int exit_code, const std::vector<std::string>& parts,
                      const RunOptions& options = {}) const {
    const auto before = listing();
    expect_error(run(serve(path("kv"), flags), options), exit_code, parts);
    EXPECT_EQ(listing(), before);
  }
  std::string objects() const { return "file:" + path("objects"); }
  std::string key_file(const std::string& content) const {
    const std::string file = write("key", content);
    EXPECT_EQ(::chmod(file.c_str(), 0600), 0);
    return file;
  }
};

TEST_F(BadStorage, AnUnknownKindListsThoseThereAre) {
  expect_refused({"--storage", "flie:" + path("objects")}, kUsage,
                 {"\"flie\"", "file, rocksdb, redis"});
  expect_refused({"--storage", path("objects")}, kUsage, {path("objects"), "file:/ssd/kv"});
  expect_refused({"--storage", ""}, kUsage, {"--storage", "empty"});
}

TEST_F(BadStorage, APlaceOrParameterThatIsMissingOrWrongIsNamed) {
  expect_refused({"--storage", "file:"}, kUsage, {"file:", "names no path"});
  expect_refused({"--storage", "plugin:"}, kUsage, {"plugin:"});
  expect_refused({"--storage", "plugin:" + path("none.so")}, kUsage, {path("none.so")});
  expect_refused({"--storage", "redis://"}, kUsage, {"redis address", "HOST[:PORT]"});
  expect_refused({"--storage", "redis://host/kv"}, kUsage, {"database's number", "?prefix=kv"});
  expect_refused({"--storage", "rediss://user@host"}, kUsage, {"CACHALOT_REDIS_PASSWORD"});
  expect_refused({"--storage", "s3://bucket"}, kUsage, {"s3://bucket", "AWS_ACCESS_KEY_ID"});
  expect_refused({"--storage", "null:?x=1"}, kUsage, {"\"x\"", "expected none"});
  expect_refused({"--storage", objects() + "?snyc=1"}, kUsage, {"\"snyc\"", "sync"});
  expect_refused({"--storage", objects() + "?sync=yes"}, kUsage, {"sync is \"yes\"", "0 to 1"});
  expect_refused({"--storage", objects() + "?sync"}, kUsage, {"\"sync\"", "NAME=VALUE"});
  expect_refused({"--storage", objects() + "?sync=1&sync=1"}, kUsage, {"sync twice"});
  expect_refused({"--storage", objects() + "?min_free_bytes=-1"}, kUsage,
                 {"min_free_bytes is \"-1\""});
  expect_refused({"--storage", objects() + "?min_free_bytes=18446744073709551616"}, kUsage,
                 {"min_free_bytes", "18446744073709551616"});
}

TEST_F(BadStorage, AFlagOfStorageNeedsStorage) {
  for (const Arguments& flag : std::vector<Arguments>{{"--storage-capacity", "1GiB"},
                                                      {"--storage-capacity-blocks", "10"},
                                                      {"--storage-write-budget", "1GiB"},
                                                      {"--write-policy", "back"},
                                                      {"--storage-key-file", path("key")}}) {
    expect_refused(flag, kUsage, {flag[0], "--storage"});
  }
}

TEST_F(BadStorage, CapacitiesAreSizesAboveZero) {
  for (const std::string flag : {"--storage-capacity", "--storage-write-budget"}) {
    for (const std::string text : {"0", "-1", "lots", "1k", "1.5", "1 GiB", "9223372036854775808",
                                   "8589934592GiB", "18446744073709551616"}) {
      expect_refused({"--storage", objects(), flag + "=" + text}, kUsage, {flag, text});
    }
    expect_refused({"--storage", objects(), flag + "="}, kUsage, {flag, "empty"});
  }
  for (const std::string text : {"0", "-1", "1.5", "many", "18446744073709551616"}) {
    expect_refused({"--storage", objects(), "--storage-capacity-blocks=" + text}, kUsage,
                   {"--storage-capacity-blocks", text});
  }
  expect_refused(
      {"--storage", objects(), "--storage-capacity", "1GiB", "--storage-capacity-blocks", "10"},
      kUsage, {"--storage-capacity-blocks", "--storage-capacity"});
  expect_refused({"--storage", objects(), "--write-policy", "often"}, kUsage,
                 {"--write-policy", "often", "through"});
}

TEST_F(BadStorage, ACapacityOfLessThanABlockIsRefused) {
  expect_refused({"--storage", objects(), "--storage-capacity", "1"}, kUsage,
                 {"--storage-capacity: 1 is less than one block", "4096"});
  expect_refused({"--storage", objects(), "--storage-capacity", "4095"}, kUsage, {"4095", "4096"});
  const std::string pool = create_pool("made");
  const auto before = listing();
  expect_error(run({"serve", "--pool", pool, "--storage", objects(), "--storage-capacity", "4095"}),
               kUsage, {"4095", "4096"});
  EXPECT_EQ(listing(), before);
}

TEST_F(BadStorage, AStandbyRefusesWhatItCouldNeverOpen) {
  const std::string pool = create_pool("stood-by");
  const std::string key = write("short-key", "short");
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  expect_error(run({"serve", "--standby", "--pool", pool, "--storage", "foo:bar"}), kUsage,
               {"unknown kind", "foo"});
  expect_error(run({"serve", "--standby", "--pool", pool, "--storage", objects() + "?sink=1"}),
               kUsage, {"sink"});
  expect_error(run({"serve", "--standby", "--pool", pool, "--storage", objects(),
                    "--storage-key-file", key}),
               kUsage, {key});
}

TEST_F(BadStorage, ADirectoryThatCannotBeUsedIsNamed) {
  expect_refused({"--storage", "file:" + path("no/such")}, kUsage, {path("no/such")});
  const std::string file = write("file", "text");
  expect_refused({"--storage", "file:" + file}, kUsage, {file});
  std::filesystem::create_directory(path("theirs"));
  write("theirs/thesis.tex", "text");
  expect_refused({"--storage", "file:" + path("theirs")}, kUsage, {path("theirs"), "thesis.tex"});
  EXPECT_EQ(read(path("theirs/thesis.tex")), "text");
}

// The keeper of a replay is a process of its own: its errors lead to the same exit codes.
TEST_F(BadStorage, AReplayEndsWithTheCodesOfServe) {
  const std::string requests = write(
      "trace.jsonl", R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})"
                     "\n");
  const auto replay = [&](const Arguments& flags) {
    Arguments all = {"replay", "--trace", requests, "--engines", "1", "--block-bytes", "4096"};
    all.insert(all.end(), flags.begin(), flags.end());
    return run(all);
  };
  expect_error(replay({"--storage", "file:" + path("no/such")}), kUsage, {path("no/such")});
  expect_error(replay({"--storage", "plugin:" + path("none.so")}), kUsage, {path("none.so")});
  expect_error(replay({"--storage", objects(), "--storage-key-file", path("nokey")}), kUsage,
               {path("nokey")});
}

// Nothing was measured where storage did not work.
TEST_F(BadStorage, AReplayWhoseStorageNeverWorkedFails) {
  const std::string requests = write(
      "trace.jsonl", R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]})"
                     "\n");
  const auto replay = [&](const std::string& storage) {
    return run({"replay", "--trace", requests, "--engines", "1", "--block-bytes", "4096",
                "--storage", storage});
  };
  const std::string port = std::to_string(storage::free_port());
  expect_error(replay("redis://127.0.0.1:" + port), kRefused, {"127.0.0.1:" + port, "refused"});
  expect_error(replay("redis+unix:" + path("none.sock")), kRefused, {path("none.sock")});
  const Outcome full =
      run({"replay", "--trace", requests, "--engines", "1", "--block-bytes", "4096", "--storage",
           objects() + "?min_free_bytes=4611686018427387904"});
  EXPECT_EQ(full.exit_code, kRefused) << full.err;
  EXPECT_NE(full.err.find("storage: 1 block failed"), std::string::npos) << full.err;
  expect_done(replay(objects()));
}

TEST_F(BadStorage, ASocketsPathThatIsTooLongIsNamedWithItsLength) {
  const std::string socket = "/dev/shm/" + std::string(99, 's');
  ASSERT_EQ(socket.size(), 108u);
  expect_refused({"--storage", "redis+unix:" + socket}, kUsage,
                 {socket.substr(0, 100), "108 bytes", "at most 107"});
}

TEST_F(BadStorage, ADirectoryThatOthersMayWriteOrOwnIsRefusedUnlessItIsAllowed) {
  for (const std::string kind : {"file:", "rocksdb:"}) {
    const std::string folder = path(kind.substr(0, kind.size() - 1));
    std::filesystem::create_directory(folder);
    ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
    const Outcome refused = run(serve(path("kv"), {"--storage", kind + folder}));
    if (refused.err.find("was not found") != std::string::npos)
      continue;  // this build has no RocksDB
    expect_error(refused, kRefused, {folder, "mode 0777", "?allow_foreign=1"});
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    {
      Serving keeper(serve(path("allowed"), {"--storage", kind + folder + "?allow_foreign=1"}));
      EXPECT_TRUE(keeper.is_ready());
    }
    ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
    if (::chown(folder.c_str(), 4711, 4711) != 0) continue;  // this user may not give files away
    expect_refused({"--storage", kind + folder}, kRefused,
                   {folder, "belongs to user 4711", "?allow_foreign=1"});
  }
  EXPECT_NE(run({"serve", "--help"}).out.find("allow_foreign=1"), std::string::npos);
}

TEST_F(BadStorage, AKeyFileOfAnotherUserIsRefused) {
  const std::string key = key_file(std::string(32, 'k'));
  if (::chown(key.c_str(), 4711, 4711) != 0) GTEST_SKIP() << "this user may not give files away";
  expect_refused({"--storage", objects(), "--storage-key-file", key}, kRefused,
                 {key, "belongs to user 4711"});
}

TEST_F(BadStorage, ADirectoryWithoutPermissionIsNamed) {
  std::filesystem::create_directory(path("closed"));
  std::filesystem::permissions(path("closed"), std::filesystem::perms(0500));
  // The folder itself is the other user's, so that the pool could be made.
  std::filesystem::permissions(path(""), std::filesystem::perms(0777));
  expect_refused({"--storage", "file:" + path("closed/objects")}, kRefused,
                 {path("closed/objects"), "Permission denied"}, {.without_rights = true});
  expect_refused({"--storage", "file:" + path("closed")}, kRefused,
                 {path("closed"), "Permission denied"}, {.without_rights = true});
}

TEST_F(BadStorage, ADirectoryOfAnotherVersionOrKindIsLeftAlone) {
  struct Mark {
    const char* text;
    int exit_code;
    const char* says;
  };
  constexpr Mark kMarks[] = {{"cachalot storage 7\n", kUsage, "version 7, expected 1"},
                             {"cachalot rocksdb 1\n", kUsage, "another kind: \"rocksdb\""},
                             {"", kUsage, "KIND VERSION"},
                             {"cachalot storage", kUsage, "KIND VERSION"}};
  std::filesystem::create_directory(path("objects"));
  for (const Mark& mark : kMarks) {
    write("objects/cachalot-storage", mark.text);
    expect_refused({"--storage", objects()}, mark.exit_code, {path("objects"), mark.says});
    EXPECT_EQ(read(path("objects/cachalot-storage")), mark.text);
  }
}

TEST_F(BadStorage, AWrongKeyFileIsNamedBeforeADirectoryIsMade) {
  const auto expect = [&](const std::string& file, int exit_code,
                          const std::vector<std::string>& parts) {
    std::vector<std::string> all = parts;
    all.push_back(file);
    expect_refused({"--storage", objects(), "--storage-key-file", file}, exit_code, all);
  };
  expect(path("missing"), kUsage, {"No such file"});
  expect(path(""), kUsage, {"directory"});
  expect(key_file(std::string(31, 'k')), kUsage, {"31 bytes", "expected 32 bytes or 64"});
  expect(key_file(std::string(200, 'k')), kUsage, {"expected 32 bytes or 64"});
  expect(key_file(std::string(64, 'g')), kUsage, {"expected 32 bytes or 64"});
  expect(key_file(""), kUsage, {"0 bytes"});
  const std::string open_to_all = key_file(std::string(32, 'k'));
  ASSERT_EQ(::chmod(open_to_all.c_str(), 0644), 0);
  expect(open_to_all, kRefused, {"mode 0644", "0600"});
}

TEST_F(BadStorage, APoolThatCannotBeMadeLeavesNoStorage) {
  const auto before = listing();
  expect_error(run(serve(path("no/such/kv"), {"--storage", objects()})), kUsage,
               {path("no/such/kv")});
  expect_error(run(serve(path("kv"), {"--storage", objects(), "--policy", "opt"})), kUsage,
               {"opt"});
  EXPECT_EQ(listing(), before);
}

}  // namespace
}  // namespace cachalot::process_test

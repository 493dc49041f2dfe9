#include <cachalot/trace_recorder.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "testing/client/test_cluster.h"

namespace cachalot::client {
namespace {

class TraceRecorderTest : public testing::Test {
 protected:
  TraceRecorderTest()
      : file_(std::filesystem::temp_directory_path() /
              ("cachalot_recorder_" + std::to_string(getpid()) + ".jsonl")) {}
  ~TraceRecorderTest() override { std::filesystem::remove(file_); }

  std::string content() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::ptrdiff_t lines(const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  }
  TraceRecorder open() const { return *TraceRecorder::open(file_.string()); }

  std::filesystem::path file_;
};

// A disk that is full: no file may grow.
class SmallFiles {
 public:
  SmallFiles() {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
    handler_ = signal(SIGXFSZ, SIG_IGN);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_ = {};
  void (*handler_)(int) = nullptr;
};

constexpr std::uint64_t kMost = ~std::uint64_t{0};

TEST_F(TraceRecorderTest, WritesMooncakesLinesWithTheUpperHalvesOfHashes) {
  TraceRecorder recorder = open();
  const std::vector<BlockHash> hashes = {{1, kMost}, {2, 7}};
  recorder.record(hashes, 130, 5, 27482);
  recorder.record({}, 3, 0, 27483);
  EXPECT_EQ(recorder.recorded(), 2u);
  EXPECT_TRUE(recorder.close());
  EXPECT_EQ(
      content(),
      "{\"timestamp\": 27482, \"input_length\": 130, \"output_length\": 5, \"hash_ids\": "
      "[18446744073709551615, 7]}\n"
      "{\"timestamp\": 27483, \"input_length\": 3, \"output_length\": 0, \"hash_ids\": []}\n");
}

TEST_F(TraceRecorderTest, AppendsToWhatIsThereAndCountsWhatComesAfterTheEnd) {
  open().record({}, 1, 1);
  TraceRecorder recorder = open();
  recorder.record({}, 1, 1);
  EXPECT_TRUE(recorder.close());
  EXPECT_FALSE(recorder.close());
  recorder.record({}, 1, 1);
  EXPECT_EQ(recorder.dropped(), 1u);
  EXPECT_EQ(lines(content()), 2);
}

TEST_F(TraceRecorderTest, LinesOfSeveralThreadsAndRecordersStayWhole) {
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      TraceRecorder recorder = open();
      const std::vector<BlockHash> hashes(20, BlockHash{1, kMost});
      for (int k = 0; k < kEach; ++k) recorder.record(hashes, 7, 7, 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = content();
  EXPECT_EQ(lines(text), 4 * kEach);
  EXPECT_EQ(text.size() % text.find("\n{"), static_cast<std::size_t>(4 * kEach) % text.find("\n{"));
}

TEST_F(TraceRecorderTest, AFullDiskIsToldAtTheEndAndNotBefore) {
  Result<TraceRecorder> recorder = TraceRecorder::open(file_.string());
  ASSERT_TRUE(recorder);
  const SmallFiles limit;
  const std::vector<BlockHash> hashes(10000, BlockHash{1, kMost});
  for (int i = 0; i < 100; ++i) recorder->record(hashes, 1, 1);
  EXPECT_GT(recorder->dropped(), 0u);
  const Status told = recorder->close();
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, Code::kNoSpace);
  EXPECT_NE(std::string(told.error().message).find(file_.string() + ": recording"),
            std::string::npos);
}

TEST_F(TraceRecorderTest, AFolderAndAFileInNoFolderAreRefused) {
  EXPECT_FALSE(TraceRecorder::open("/"));
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  for (const std::string& other : {std::string("/dev/null"), file_.string()}) {
    const auto opened = TraceRecorder::open(other);  // a FIFO must not be waited for
    ASSERT_FALSE(opened) << other;
    EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
    EXPECT_EQ(std::string(opened.error().message).find(other + ": recording: expected a regular"),
              0u)
        << opened.error().message;
  }
  const auto refused = TraceRecorder::open("/none/at/all");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
}

TEST_F(TraceRecorderTest, AForkedChildWritesNothingTwice) {
  {
    TraceRecorder recorder = open();
    recorder.record({}, 1, 1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      recorder.record({}, 2, 2);
      { const TraceRecorder gone = std::move(recorder); }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
  }
  EXPECT_EQ(lines(content()), 1);
}

TEST_F(TraceRecorderTest, AClientRecordsItsLookupsOrItsLoads) {
  const Cluster cluster;
  for (const RecordedCall call : {RecordedCall::kLookup, RecordedCall::kLoad}) {
    std::filesystem::remove(file_);
    std::vector<BlockHash> hashes;
    {
      ClientOptions options = cluster.client_options();
      options.record_requests = file_.string();
      options.recorded_call = call;
      Engine engine(options);
      hashes = engine.client.hash_tokens(tokens_of(1, 14));
      EXPECT_EQ(*engine.client.lookup(hashes), 0u);
      const std::vector<PageId> pages = {0, 1, 2};
      EXPECT_EQ(*engine.client.load(engine.cache, hashes, pages), 0u);
    }
    const std::string ids = std::to_string(hashes[0].high) + ", " + std::to_string(hashes[1].high) +
                            ", " + std::to_string(hashes[2].high);
    EXPECT_NE(content().find("\"input_length\": 12, \"output_length\": 0, \"hash_ids\": [" + ids +
                             "]}\n"),
              std::string::npos)
        << content();
    EXPECT_EQ(lines(content()), 1);
  }
}

TEST_F(TraceRecorderTest, AClientThatCannotRecordIsNotAttached) {
  const Cluster cluster;
  ClientOptions options = cluster.client_options();
  options.record_requests = "/none/at/all";
  const Result<Client> client = Client::attach(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kInvalidArgument);
}

TEST_F(TraceRecorderTest, ADeviceOfThePoolIsNotWrittenInto) {
  const Cluster cluster;
  ClientOptions options = cluster.client_options();
  const std::string device = options.pool[0];
  const auto bytes = std::filesystem::file_size(device);
  std::filesystem::create_symlink(device, file_);
  for (const std::string& name : {device, file_.string()}) {
    options.record_requests = name;
    const Result<Client> client = Client::attach(options);
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().code, Code::kInvalidArgument);
    EXPECT_EQ(std::string(client.error().message).find(name + ": recording: is device 0"), 0u)
        << client.error().message;
  }
  EXPECT_EQ(std::filesystem::file_size(device), bytes);
}

}  // namespace
}  // namespace cachalot::client

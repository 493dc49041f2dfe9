// A command that the system refuses memory, threads or descriptors says so, and ends as cli.md says.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "program.h"

namespace cachalot::process_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasLimits = false;  // sanitizers need more addresses than any limit here
#else
constexpr bool kHasLimits = true;
#endif

constexpr int kRefused = 3;
constexpr std::uint64_t kMiB = 1u << 20;

class Limits : public ProcessTest {
 protected:
  void SetUp() override {
    if (!kHasLimits) GTEST_SKIP() << "sanitizers need more than the limits of these tests";
  }
  Arguments serve() const {
    return {"serve",
            "--pool",
            path("kv"),
            "--create",
            "--block-bytes",
            "64KiB",
            "--capacity",
            "64MiB",
            "--metrics",
            "127.0.0.1:0",
            "--kv-events",
            "ipc://" + path("events"),
            "--kv-events-replay",
            "ipc://" + path("replay"),
            "--storage",
            "file:" + path("objects")};
  }
  // Serves until it is told to end, or ends with one error.
  // @return whether it served
  bool serves(const RunOptions& options) {
    Serving serving(serve(), options);
    if (serving.is_ready()) serving.send(SIGTERM);
    const Outcome outcome = serving.wait();
    EXPECT_EQ(outcome.signal, 0) << outcome.err;
    if (outcome.exit_code == 0) return true;
    EXPECT_EQ(outcome.exit_code, kRefused) << outcome.err;
    const std::size_t line = outcome.err.find("cachalot: ");
    EXPECT_NE(line, std::string::npos) << outcome.err;
    if (line == std::string::npos) return false;
    EXPECT_EQ(std::count(outcome.err.begin() + static_cast<std::ptrdiff_t>(line), outcome.err.end(),
                         '\n'),
              1)
        << outcome.err;
    return false;
  }
  // From limits at which nothing works to one that is large enough.
  void sweep(int resource, const std::vector<std::uint64_t>& limits, bool without_rights = false) {
    std::size_t served = 0;
    for (const std::uint64_t limit : limits) {
      SCOPED_TRACE("limit " + std::to_string(limit));
      RunOptions options;
      options.limit = {resource, limit};
      options.without_rights = without_rights;
      served += serves(options);
    }
    EXPECT_GT(served, 0u);
    EXPECT_LT(served, limits.size());
  }
};

TEST_F(Limits, OfTheAddressSpaceAreAnError) {
  std::vector<std::uint64_t> limits;
  for (std::uint64_t mib = 100; mib <= 700; mib += 60) limits.push_back(mib * kMiB);
  sweep(RLIMIT_AS, limits);
}

TEST_F(Limits, OfDescriptorsAreAnError) {
  sweep(RLIMIT_NOFILE, {6, 7, 11, 15, 18, 22, 25, 28, 32, 64});
}

TEST_F(Limits, OfThreadsAreAnError) {
  if (geteuid() != 0) GTEST_SKIP() << "this user's other processes count, too";
  sweep(RLIMIT_NPROC, {1, 2, 3, 4, 5, 6, 7, 8, 1000}, true);
}

// What cannot be parsed for want of memory is no bad line: skipped, it would make the figures wrong.
TEST_F(Limits, OfTheAddressSpaceDoNotMakeLinesOfATraceBad) {
  constexpr int kIds = 1 << 20;
  std::string line = R"({"timestamp": 0, "input_length": )" +
                     std::to_string(kIds * std::uint64_t{512}) +
                     R"(, "output_length": 1, "hash_ids": [0)";
  for (int i = 1; i < kIds; ++i) line += "," + std::to_string(i);
  line += "]}\n";
  const std::string short_line =
      R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [7]})";
  const std::string trace = write("trace.jsonl", short_line + "\n" + line + short_line + "\n");
  const std::string expected = run({"trace", "info", trace, "--json", "-"}).out;
  int refused = 0;
  for (std::uint64_t mib = 60; mib <= 460; mib += 20) {
    SCOPED_TRACE("limit " + std::to_string(mib) + " MiB");
    RunOptions options;
    options.limit = {RLIMIT_AS, mib * kMiB};
    const Outcome outcome =
        run({"trace", "info", trace, "--skip-bad-lines", "--json", "-"}, options);
    if (outcome.exit_code == 0) {
      EXPECT_EQ(outcome.out, expected);
    } else {
      ++refused;
      EXPECT_EQ(outcome.exit_code, kRefused) << outcome.err;
      EXPECT_NE(outcome.err.find("memory"), std::string::npos) << outcome.err;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace cachalot::process_test

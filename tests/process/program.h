// Runs the built binary, and checks what every error of it has in common.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::process_test {

using Arguments = std::vector<std::string>;

struct Outcome {
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  std::string out, err;

  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

struct RunOptions {
  std::string in = {};  // on stdin
  // Closed when the program starts, of 0, 1 and 2.
  std::vector<int> closed = {};
  int out = -1;  // what stdout is instead of what Outcome::out shows
  // Of the system's resources: RLIMIT_AS and others.
  struct Limit {
    int resource = 0;
    std::uint64_t value = 0;
  };
  std::optional<Limit> limit = {};
  // Runs as a user that owns nothing; where this process is not root it is as it is.
  bool without_rights = false;
};

// Runs `cachalot ARGUMENTS…` to its end. An exit code of 77 says that it could not be started.
Outcome run(const Arguments& arguments, const RunOptions& options = {});
inline constexpr int kNotStarted = 77;

// The program's error contract: this exit code, nothing on stdout, and one line on stderr which
// contains all of `parts`.
void expect_error(const Outcome& outcome, int exit_code, const std::vector<std::string>& parts);
void expect_done(const Outcome& outcome);

// The words that a shell completes after these.
std::set<std::string> next_words(Arguments words);
// The flags at the beginnings of the lines of `cachalot COMMAND… --help`.
std::set<std::string> flags_in_help(Arguments command);
// What a shell's command prints; `cachalot` is the built binary there.
std::string said_by(const std::string& shell_command);

// `cachalot ARGUMENTS…` in the background; killed at the end if it still runs.
class Running {
 public:
  explicit Running(const Arguments& arguments, const RunOptions& options = {});

  // Waits until the program has printed `text` on stdout. False: it ended without.
  bool says(const std::string& text);
  bool has_ended();
  std::string out() const;
  void send(int signal) { child_->send(signal); }
  Outcome wait();

 private:
  os::FileDescriptor in_, out_, err_;
  std::optional<os::Child> child_;
};

// `cachalot serve`.
class Serving : public Running {
 public:
  // Waits for the ready line, or the end.
  explicit Serving(const Arguments& arguments, const RunOptions& options = {})
      : Running(arguments, options) {
    if (says("\n")) ready_line_ = out().substr(0, out().find('\n'));
  }

  bool is_ready() const { return !ready_line_.empty(); }
  const std::string& ready_line() const { return ready_line_; }
  // With --metrics 127.0.0.1:PORT: the answer to a GET, head and body.
  std::string get(const std::string& path) const;
  // What it exports, and one sample of it.
  // @param labels  as they are in the text: R"(reason="no_space")"; empty: the first sample
  // @return        -1: there is no such sample
  std::string scrape() const { return get("/metrics"); }
  std::int64_t metric(const std::string& name, const std::string& labels = {}) const;

 private:
  std::string ready_line_;
};

// Every test has a folder of its own in /dev/shm; tests say what may be left in it at the end.
class ProcessTest : public testing::Test {
 protected:
  ProcessTest();
  ~ProcessTest() override;

  std::string path(const std::string& name) const { return folder_ / name; }
  // Names in the folder, and those elsewhere in /dev/shm that carry its name.
  std::set<std::string> listing() const;
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  std::string read(const std::string& file) const;

  // A small pool of blocks of 4096 bytes, with four client slots.
  std::string create_pool(const std::string& name, const Arguments& more_flags = {},
                          int capacity_blocks = 32) const;

  // Runs `body` in a child process that sees `folder` as a tmpfs of this size ("6m"), where no other process
  // sees it. Failures in the child fail the test.
  // @return false: this user cannot mount a tmpfs
  bool run_in_small_tmpfs(const std::string& folder, const char* size,
                          const std::function<void()>& body) const;

  const std::string& tag() const { return tag_; }

 private:
  std::string tag_;
  std::filesystem::path folder_;
};

// Bytes of all values, the same for the same seed.
std::string noise(std::size_t bytes, std::uint64_t seed);

}  // namespace cachalot::process_test

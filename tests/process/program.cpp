#include "program.h"

#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/rng.h"

namespace cachalot::process_test {
namespace {

constexpr unsigned kNobody = 65534;

os::FileDescriptor anonymous_file(const std::string& content) {
  os::FileDescriptor file(memfd_create("process_test", MFD_CLOEXEC));
  EXPECT_TRUE(file);
  EXPECT_EQ(::pwrite(file.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return file;
}

std::string content_of(int fd) {
  std::string content;
  char piece[4096];
  for (;;) {
    const ssize_t n = ::pread(fd, piece, sizeof piece, static_cast<off_t>(content.size()));
    if (n <= 0) return content;
    content.append(piece, static_cast<std::size_t>(n));
  }
}

// Becomes the program; returns only if it cannot.
int become(const Arguments& arguments, int in, int out, int err, const RunOptions& options) {
  if (dup2(in, 0) < 0 || dup2(options.out < 0 ? out : options.out, 1) < 0 || dup2(err, 2) < 0) {
    return kNotStarted;
  }
  for (const int fd : options.closed) close(fd);
  // The parent of the tests may ignore some.
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM}) ::signal(signal, SIG_DFL);
  if (options.without_rights && geteuid() == 0) {
    if (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0) {
      return kNotStarted;
    }
  }
  if (options.limit) {
    const rlimit limit{options.limit->value, options.limit->value};
    if (setrlimit(static_cast<__rlimit_resource>(options.limit->resource), &limit) != 0)
      return kNotStarted;
  }
  std::string binary = CACHALOT_BINARY;
  std::vector<char*> argv = {binary.data()};
  Arguments copy = arguments;
  for (std::string& argument : copy) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(binary.c_str(), argv.data());
  return kNotStarted;
}

// Waits for the end, with the patience of a slow machine under sanitizers, or of a core that many others use.
Outcome outcome_of(os::Child& child, int out, int err) {
  constexpr std::uint64_t kPatienceMs = 480'000;
  const auto ended = child.wait_for(kPatienceMs);
  EXPECT_TRUE(ended && ended->has_value()) << "the program runs on and on";
  if (!ended || !ended->has_value()) child.send(SIGKILL);
  const Result<os::ChildStatus> status = child.wait();
  EXPECT_TRUE(status);
  if (!status) return {};
  return {status->exit_code, status->signal, content_of(out), content_of(err)};
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

}  // namespace

Outcome run(const Arguments& arguments, const RunOptions& options) {
  return Running(arguments, options).wait();
}

std::set<std::string> next_words(Arguments words) {
  words.emplace_back("__complete");
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return lines_of(outcome.out);
}

std::set<std::string> flags_in_help(Arguments command) {
  command.emplace_back("--help");
  std::set<std::string> flags;
  for (const std::string& line : lines_of(run(command).out)) {
    const std::size_t at = line.find("--");
    if (at == std::string::npos || line.find_first_not_of(" ") < 2 ||
        line.substr(0, at).find_first_not_of(" -h,path") != std::string::npos)
      continue;
    flags.insert(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  return flags;
}

std::string said_by(const std::string& shell_command) {
  const std::string path = std::filesystem::path(CACHALOT_BINARY).parent_path();
  const std::string command = "PATH=" + path + ":$PATH " + shell_command;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(popen(command.c_str(), "r"), pclose);
  std::string text;
  char part[4096];
  for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, out.get())) > 0;)
    text.append(part, n);
  return text;
}

void expect_error(const Outcome& outcome, int exit_code, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_code, exit_code);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(outcome.err.starts_with("cachalot: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with('\n')) << outcome.err;
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos)
        << "\"" << part << "\" is not in: " << outcome.err;
  }
}

void expect_done(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal << ", stderr: " << outcome.err;
}

Running::Running(const Arguments& arguments, const RunOptions& options)
    : in_(anonymous_file(options.in)), out_(anonymous_file("")), err_(anonymous_file("")) {
  Result<os::Child> child = os::Child::start(
      [&] { return become(arguments, in_.get(), out_.get(), err_.get(), options); });
  EXPECT_TRUE(child) << child.error().message;
  if (child) child_ = *std::move(child);
}

bool Running::says(const std::string& text) {
  while (child_) {
    const auto ended = child_->wait_for(2);
    if (out().find(text) != std::string::npos) return true;
    if (!ended || ended->has_value()) return false;
  }
  return false;
}

bool Running::has_ended() {
  if (!child_) return true;
  const auto ended = child_->wait_for(0);
  return !ended || ended->has_value();
}

std::string Running::out() const {
  return content_of(out_.get());
}

Outcome Running::wait() {
  return child_ ? outcome_of(*child_, out_.get(), err_.get()) : Outcome{};
}

std::string Serving::get(const std::string& path) const {
  constexpr std::string_view kMetrics = "metrics=127.0.0.1:";
  const std::size_t at = ready_line_.find(kMetrics);
  if (at == std::string::npos) return "";
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(ready_line_.substr(at + kMetrics.size()))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const os::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return "";
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char part[4096];
  for (ssize_t n = 0; (n = ::recv(socket.get(), part, sizeof part, 0)) > 0;)
    answer.append(part, static_cast<std::size_t>(n));
  return answer;
}

std::int64_t Serving::metric(const std::string& name, const std::string& labels) const {
  const std::string all = scrape(), head = "\n" + name + "{";
  for (std::size_t at = all.find(head); at != std::string::npos; at = all.find(head, at + 1)) {
    const std::size_t end = all.find("} ", at);
    if (all.substr(at, end - at).find(labels) != std::string::npos)
      return std::stoll(all.substr(end + 2));
  }
  return -1;
}

ProcessTest::ProcessTest() {
  static std::atomic<unsigned> next{0};
  tag_ = "cachalot_process_test." + std::to_string(getpid()) + "." + std::to_string(next++);
  folder_ = "/dev/shm/" + tag_;
  std::filesystem::create_directory(folder_);
  // For users without rights elsewhere.
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
}

ProcessTest::~ProcessTest() {
  std::filesystem::remove_all(folder_);
}

std::set<std::string> ProcessTest::listing() const {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    names.insert(entry.path().filename());
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name != tag_ && name.find(tag_) != std::string::npos) names.insert("/dev/shm/" + name);
  }
  return names;
}

std::string ProcessTest::write(const std::string& name, const std::string& content) const {
  std::ofstream file(path(name), std::ios::binary);
  file << content;
  return path(name);
}

std::string ProcessTest::read(const std::string& file) const {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

bool ProcessTest::run_in_small_tmpfs(const std::string& folder, const char* size,
                                     const std::function<void()>& body) const {
  Result<os::Child> child = os::Child::start([&] {
    const std::string options = std::string("size=") + size;
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("small", folder.c_str(), "tmpfs", 0, options.c_str()) != 0) {
      return kNotStarted;
    }
    body();
    return HasFailure() ? 1 : 0;
  });
  if (!child) {
    ADD_FAILURE() << child.error().message;
    return true;
  }
  const auto status = child->wait();
  if (status && status->exit_code == kNotStarted) return false;
  EXPECT_TRUE(status && status->ok()) << (status ? status->text() : status.error().message);
  return true;
}

std::string ProcessTest::create_pool(const std::string& name, const Arguments& more_flags,
                                     int capacity_blocks) const {
  Arguments arguments = {"pool",
                         "create",
                         path(name),
                         "--block-bytes",
                         "4096",
                         "--clients",
                         "4",
                         "--capacity-blocks",
                         std::to_string(capacity_blocks)};
  arguments.insert(arguments.end(), more_flags.begin(), more_flags.end());
  expect_done(run(arguments));
  return path(name);
}

std::string noise(std::size_t bytes, std::uint64_t seed) {
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) {
    const std::uint64_t word = base::mix64(seed * 0x9e3779b97f4a7c15u + i);
    text.append(reinterpret_cast<const char*>(&word), std::min(sizeof word, bytes - text.size()));
  }
  return text;
}

}  // namespace cachalot::process_test

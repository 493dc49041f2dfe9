#include "mooncake_peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace cachalot::apps::bench {
namespace {

constexpr int kNoWheel = 3, kNotStarted = 127;
constexpr int kAnswerMs = 120'000;

Error silence() {
  return Error::make(Code::kTimeout, "Mooncake: no answer in %d s", kAnswerMs / 1000);
}

}  // namespace

MooncakePeer::MooncakePeer(os::Child child, os::FileDescriptor questions,
                           os::FileDescriptor answers)
    : questions_(std::move(questions)), answers_(std::move(answers)), child_(std::move(child)) {}

Result<std::unique_ptr<MooncakePeer>> MooncakePeer::open(const std::string& python,
                                                         const char* script, const Cores* cores) {
  signal(SIGPIPE, SIG_IGN);  // a script that has ended is an error of write()
  std::array<int, 2> in{}, out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe");
  os::FileDescriptor to_read(in[0]), questions(in[1]);
  if (pipe2(out.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe");
  os::FileDescriptor answers(out[0]), to_write(out[1]);
  const std::string receiver = std::to_string(cores == nullptr ? -1 : cores->own),
                    sender = std::to_string(cores == nullptr ? -1 : cores->other);
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        const os::FileDescriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
                        dup2(to_read.get(), STDIN_FILENO);
                        dup2(to_write.get(), STDOUT_FILENO);
                        dup2(nowhere.get(), STDERR_FILENO);
                        execlp(python.c_str(), python.c_str(), "-c", script, receiver.c_str(),
                               sender.c_str(), nullptr);
                        return kNotStarted;
                      }));
  to_read.close();
  to_write.close();
  std::unique_ptr<MooncakePeer> peer(
      new MooncakePeer(std::move(child), std::move(questions), std::move(answers)));
  CACHALOT_TRY_ASSIGN(const std::string ready, peer->read_line());
  if (ready == "ready") return peer;
  return Error::make(Code::kIo, "Mooncake: expected \"ready\", it says \"%s\"", ready.c_str());
}

// Why there are no more lines.
Status MooncakePeer::end() {
  CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> status, child_.wait_for(kAnswerMs));
  if (!status) return silence();
  if (status->exit_code == kNotStarted)
    return Error::make(Code::kUnsupported, "this Python cannot be started");
  if (status->exit_code == kNoWheel)
    return Error::make(Code::kUnsupported, "this Python has no module mooncake");
  return Error::make(Code::kIo, "Mooncake ended with %s", status->text().c_str());
}

Result<std::string> MooncakePeer::read_line() {
  for (;;) {
    if (const std::size_t end_of_line = text_.find('\n'); end_of_line != std::string::npos) {
      std::string line = text_.substr(0, end_of_line);
      text_.erase(0, end_of_line + 1);
      return line;
    }
    pollfd fd{answers_.get(), POLLIN, 0};
    if (poll(&fd, 1, kAnswerMs) == 0) return silence();
    std::array<char, 256> part;
    const ssize_t count = read(answers_.get(), part.data(), part.size());
    if (count > 0) {
      text_.append(part.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      CACHALOT_TRY(end());
    }
  }
}

Result<double> MooncakePeer::ask(std::uint64_t bytes, std::uint64_t count) {
  const std::string line = std::to_string(bytes) + " " + std::to_string(count) + "\n";
  if (write(questions_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    CACHALOT_TRY(end());
  CACHALOT_TRY_ASSIGN(const std::string answer, read_line());
  const double figure = std::atof(answer.c_str());
  if (figure > 0) return figure;
  return Error::make(Code::kIo, "Mooncake: expected a figure above 0, it says \"%s\"",
                     answer.c_str());
}

}  // namespace cachalot::apps::bench

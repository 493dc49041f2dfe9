#include "os/child.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "base/clock.h"

// Present in coverage builds only.
extern "C" void __gcov_dump() __attribute__((weak));

namespace cachalot::os {
namespace {

ChildStatus decode(int wait_status) {
  ChildStatus status;
  if (WIFEXITED(wait_status)) status.exit_code = WEXITSTATUS(wait_status);
  if (WIFSIGNALED(wait_status)) status.signal = WTERMSIG(wait_status);
  return status;
}

[[noreturn]] void run(const std::function<int()>& body, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
  const int code = body();
  std::fflush(nullptr);
  // _exit() skips what would write a coverage build's counts.
  if (&__gcov_dump != nullptr) __gcov_dump();
  _exit(code);
}

}  // namespace

std::string ChildStatus::text() const {
  if (exit_code >= 0) return "exit code " + std::to_string(exit_code);
  const char* name = sigabbrev_np(signal);
  return "signal " + std::to_string(signal) + " (" + (name != nullptr ? name : "?") + ")";
}

Result<Child> Child::start(const std::function<int()>& body) {
  std::fflush(nullptr);  // or both processes would write what is buffered
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Error::from_errno(errno, "fork");
  if (pid == 0) run(body, parent);
  FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const int pidfd_error = pidfd ? 0 : errno;
  return Child(pid, std::move(pidfd), pidfd_error);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      pidfd_error_(other.pidfd_error_),
      status_(other.status_) {}

Child& Child::operator=(Child&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    pidfd_error_ = other.pidfd_error_;
    status_ = other.status_;
  }
  return *this;
}

Child::~Child() {
  end();
}

void Child::end() {
  if (pid_ < 0 || status_) return;
  send(SIGKILL);
  static_cast<void>(wait());
}

Result<ChildStatus> Child::wait() {
  while (!status_) {
    int wait_status = 0;
    if (waitpid(pid_, &wait_status, 0) == pid_) {
      status_ = decode(wait_status);
    } else if (errno != EINTR) {
      return Error::from_errno(errno, "waiting for process %d", pid_);
    }
  }
  return *status_;
}

Result<std::optional<ChildStatus>> Child::wait_for(std::uint64_t timeout_ms) {
  if (status_) return status_;
  if (!pidfd_) return no_pidfd();
  const std::uint64_t start_ns = base::SteadyClock::read();
  for (;;) {
    const std::uint64_t gone_ms = (base::SteadyClock::read() - start_ns) / 1'000'000u;
    const std::uint64_t left_ms = timeout_ms > gone_ms ? timeout_ms - gone_ms : 0;
    pollfd ready{pidfd_.get(), POLLIN, 0};
    const int count = poll(&ready, 1, static_cast<int>(std::min<std::uint64_t>(left_ms, INT_MAX)));
    if (count > 0) {
      CACHALOT_TRY_ASSIGN(const ChildStatus status, wait());
      return std::optional<ChildStatus>(status);
    }
    if (count < 0 && errno != EINTR) {
      return Error::from_errno(errno, "waiting for process %d", pid_);
    }
    if (left_ms == 0) return std::optional<ChildStatus>();
  }
}

Error Child::no_pidfd() const {
  if (pidfd_error_ == ENOSYS)
    return Error::make(Code::kUnsupported, "this kernel has no pidfd to wait on");
  Error error = Error::from_errno(pidfd_error_, "process %d: no file descriptor to wait on", pid_);
  if (pidfd_error_ == EMFILE || pidfd_error_ == ENFILE) error.code = Code::kNoSpace;
  return error;
}

void Child::send(int signal) {
  if (pid_ > 0 && !status_) kill(pid_, signal);
}

}  // namespace cachalot::os

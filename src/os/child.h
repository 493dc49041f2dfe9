// A function that runs in a process of its own and does not outlive its parent.
//
// The kernel kills the child when the *thread* that started it ends: start children from a thread
// that stays. After fork() only the calling thread exists in the child, so start children before
// other threads hold locks that the function needs (malloc is safe with glibc).
#pragma once

#include <cachalot/result.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "os/file_descriptor.h"

namespace cachalot::os {

struct ChildStatus {
  int exit_code = -1;  // 0 to 255, or -1: ended by `signal`
  int signal = 0;

  bool ok() const { return exit_code == 0; }
  // "exit code 3", "signal 9 (KILL)"
  std::string text() const;
};

class Child {
 public:
  // Runs `body` in a child; what it returns is the exit code. The child leaves by _exit: no static
  // destructors, no atexit. @errors kNoSpace, kBusy: no process to be had
  static Result<Child> start(const std::function<int()>& body);

  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  // kills and reaps a child that was not waited for

  pid_t pid() const { return pid_; }

  // Waits for the end; later calls give the same status. @errors kIo
  Result<ChildStatus> wait();
  // Nothing when it still runs after the timeout (0: only looks).
  Result<std::optional<ChildStatus>> wait_for(std::uint64_t timeout_ms);
  // SIGKILL, SIGSTOP, …; does nothing after the end was seen.
  void send(int signal);

 private:
  Child(pid_t pid, FileDescriptor pidfd, int pidfd_error)
      : pid_(pid), pidfd_(std::move(pidfd)), pidfd_error_(pidfd_error) {}
  Error no_pidfd() const;
  void end();

  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  int pidfd_error_ = 0;  // why there is none
  std::optional<ChildStatus> status_;
};

}  // namespace cachalot::os

#include "os/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <string>
#include <string_view>

#include "os/file_descriptor.h"

namespace cachalot::os {
namespace {

// The start of a small file of /proc: at most 1023 bytes, which holds what is looked for here.
Result<std::string> read_start(const char* path) {
  const FileDescriptor fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return Error::from_errno(errno, "%s: opening", path);
  std::array<char, 1023> buffer;
  const ssize_t bytes = read(fd.get(), buffer.data(), buffer.size());
  // ESRCH: the process went away between open and read.
  if (bytes < 0 && errno == ESRCH) return Error::make(Code::kNotFound, "%s: process is gone", path);
  if (bytes < 0) return Error::from_errno(errno, "%s: reading", path);
  return std::string(buffer.data(), static_cast<std::size_t>(bytes));
}

struct ProcessStat {
  char state = '?';
  std::uint64_t threads = 0;
  std::uint64_t start_time = 0;
};

// proc_pid_stat(5). Field 2 is the program's name in parentheses and may itself hold spaces and
// parentheses: what follows is counted from the last one.
Result<ProcessStat> read_stat(std::uint32_t pid) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
  CACHALOT_TRY_ASSIGN(const std::string text, read_start(path));
  const std::size_t name_end = text.rfind(')');
  ProcessStat result;
  // Fields 3, 20 and 22.
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64
                  " %*s %" SCNu64,
                  &result.state, &result.threads, &result.start_time) != 3) {
    return Error::make(Code::kIo, "%s: not of the expected form", path);
  }
  return result;
}

int lower_hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

struct ParsedUuid {
  Uuid uuid;
  int digits = 0;
};

ParsedUuid parse_uuid(const std::string& text) {
  ParsedUuid parsed;
  for (const char c : text) {
    const int digit = lower_hex_digit(c);
    if (digit < 0) continue;  // dashes, end of line
    std::uint64_t& half = parsed.digits < 16 ? parsed.uuid.high : parsed.uuid.low;
    half = half << 4 | static_cast<std::uint64_t>(digit);
    ++parsed.digits;
  }
  return parsed;
}

bool is_pid(std::uint32_t pid) {
  return pid > 0 && pid <= INT_MAX;
}

}  // namespace

Result<Uuid> random_uuid() {
  Uuid uuid;
  const ssize_t bytes = getrandom(&uuid, sizeof uuid, 0);
  if (bytes != sizeof uuid) return Error::from_errno(errno, "getrandom");
  return uuid;
}

Result<Uuid> boot_id() {
  constexpr const char* kPath = "/proc/sys/kernel/random/boot_id";
  CACHALOT_TRY_ASSIGN(const std::string text, read_start(kPath));
  const auto [id, digits] = parse_uuid(text);
  if (digits != 32) return Error::make(Code::kIo, "%s: %d hex digits, expected 32", kPath, digits);
  return id;
}

Uuid machine_id() {
  Uuid id;
  for (const char* const path : {"/etc/machine-id", "/sys/class/dmi/id/product_uuid"}) {
    const Result<std::string> text = read_start(path);
    if (!text) continue;
    const Uuid one = parse_uuid(*text).uuid;
    id = {id.low ^ one.low, id.high ^ one.high};
  }
  return id;
}

std::uint32_t own_pid() {
  return static_cast<std::uint32_t>(getpid());
}

Result<Namespaces> namespaces() {
  constexpr const char* kPid = "/proc/self/ns/pid";
  constexpr const char* kTime = "/proc/self/ns/time";
  Namespaces own;
  struct stat status {};
  if (stat(kPid, &status) != 0) return Error::from_errno(errno, "%s: stat", kPid);
  own.pid = static_cast<std::uint32_t>(status.st_ino);
  if (stat(kTime, &status) == 0) {
    own.time = static_cast<std::uint32_t>(status.st_ino);
  } else if (errno != ENOENT) {
    return Error::from_errno(errno, "%s: stat", kTime);
  }
  return own;
}

Result<std::uint64_t> process_start_time(std::uint32_t pid) {
  if (!is_pid(pid)) return Error::make(Code::kNotFound, "process %" PRIu32 ": no such pid", pid);
  CACHALOT_TRY_ASSIGN(const ProcessStat stat, read_stat(pid));
  return stat.start_time;
}

bool process_alive(std::uint32_t pid, std::uint64_t start_time) {
  if (!is_pid(pid)) return false;
  const Result<ProcessStat> stat = read_stat(pid);
  if (!stat) {
    // /proc may be mounted to hide others' processes; signal 0 asks the kernel itself.
    return !(kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
  }
  if (stat->start_time != start_time) return false;
  // A zombie that is alone has no memory any more; one with threads is a main thread that left.
  const bool zombie = stat->state == 'Z' || stat->state == 'X';
  return !(zombie && stat->threads <= 1);
}

}  // namespace cachalot::os

#include "command.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>

#include "base/log.h"
#include "base/log_format.h"
#include "base/words.h"

namespace cachalot::apps {
namespace {

bool error_was_told = false;

}  // namespace

int exit_code(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kBadInput:
    case Code::kNotAPool:
    case Code::kVersionMismatch:
      return kExitUsage;
    case Code::kNotFound:
    case Code::kCorrupt:
    case Code::kStale:
    case Code::kRefused:
    case Code::kInternal:
    case Code::kCancelled:
      return kExitFault;
    case Code::kNoKeeper:
    case Code::kNoSpace:
    case Code::kPermission:
    case Code::kBusy:
    case Code::kTimeout:
    case Code::kUnsupported:
    case Code::kIo:
      return kExitRefused;
  }
  return kExitFault;
}

void tell_error(const std::string& line) {
  if (base::log_format() == base::LogFormat::kJson) {
    base::write_log_line(base::LogLevel::kError, "cachalot", line);
  } else {
    std::fprintf(stderr, "cachalot: %s\n", line.c_str());
  }
  error_was_told = true;
}

int fail(const Error& error) {
  // One line, whatever a path or a library's text contains.
  tell_error(base::printable(error.message));
  // A file that was named and is not there is a matter of usage; a key that is absent is not.
  const bool is_path = error.code == Code::kNotFound && error.os_error != 0;
  return is_path ? kExitUsage : exit_code(error.code);
}

Status flush(std::FILE* out) {
  // What cannot be written is forgotten, and nothing is wrong the next time.
  static int first_of_stdout = 0;
  const bool is_stdout = out == stdout;
  const bool is_flushed = std::fflush(out) == 0;
  const int os_error = is_flushed ? EIO : errno;
  if (is_flushed && std::ferror(out) == 0) return {};
  if (is_stdout && first_of_stdout == 0) first_of_stdout = os_error;
  return Error::from_errno(is_stdout ? first_of_stdout : os_error, "%s: writing",
                           is_stdout ? "stdout" : "stderr");
}

int finish(int code) {
  const Status written = flush(stdout);
  return written || error_was_told ? code : fail(written.error());
}

void show_requests(std::uint64_t requests, std::uint64_t every) {
  if (requests % every != 0 || isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%" PRIu64 " requests", requests);
}

std::FILE* human_output(const std::string& json_file) {
  return json_file == "-" ? stderr : stdout;
}

}  // namespace cachalot::apps

#include <cachalot/error.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace cachalot {
namespace {

Code code_of_errno(int os_error) {
  switch (os_error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EFBIG:  // the limit of this process (ulimit -f), or of the file system
      return Code::kNoSpace;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermission;
    case EBUSY:
    case EAGAIN:
    case EEXIST:
    case EADDRINUSE:
      return Code::kBusy;
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EINVAL:
    case EISDIR:
    case ENAMETOOLONG:
    case EADDRNOTAVAIL:
      return Code::kInvalidArgument;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnsupported;
    default:
      return Code::kIo;
  }
}

// A message is one line, also where it quotes a path or a key that has line breaks.
void replace_control_characters(char* text) {
  for (; *text != 0; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    if (byte < 0x20 || byte == 0x7f) *text = ' ';
  }
}

// Writes the text and marks a cut with "..." so that half a path is not mistaken for a whole one.
void write_message(char* to, const char* format, std::va_list arguments) {
  const int wanted = std::vsnprintf(to, Error::kMessageBytes, format, arguments);
  if (wanted >= Error::kMessageBytes) std::memcpy(to + Error::kMessageBytes - 4, "...", 4);
  replace_control_characters(to);
}

}  // namespace

const char* code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kBadInput:
      return "bad_input";
    case Code::kNotAPool:
      return "not_a_pool";
    case Code::kVersionMismatch:
      return "version_mismatch";
    case Code::kNotFound:
      return "not_found";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kStale:
      return "stale";
    case Code::kRefused:
      return "refused";
    case Code::kNoKeeper:
      return "no_keeper";
    case Code::kNoSpace:
      return "no_space";
    case Code::kPermission:
      return "permission";
    case Code::kBusy:
      return "busy";
    case Code::kTimeout:
      return "timeout";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kIo:
      return "io";
    case Code::kInternal:
      return "internal";
    case Code::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Error Error::make(Code code, const char* format, ...) {
  Error error;
  error.code = code;
  std::va_list arguments;
  va_start(arguments, format);
  write_message(error.message, format, arguments);
  va_end(arguments);
  return error;
}

Error Error::from_errno(int os_error, const char* format, ...) {
  char what[kMessageBytes];
  std::va_list arguments;
  va_start(arguments, format);
  write_message(what, format, arguments);
  va_end(arguments);
  Error error = make(code_of_errno(os_error), "%.180s: %s", what, std::strerror(os_error));
  error.os_error = static_cast<std::uint32_t>(os_error);
  return error;
}

}  // namespace cachalot

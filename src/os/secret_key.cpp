#include "os/secret_key.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/file_descriptor.h"

namespace cachalot::os {
namespace {

int hex_digit(unsigned char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int lower = c | 0x20;
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

Result<SecretKey> SecretKey::read(const char* subject, const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) {
    return Error::from_errno(errno, "%s %.160s", subject, path.c_str());
  }
  if (S_ISDIR(info.st_mode)) {
    return Error::make(Code::kInvalidArgument, "%s %.120s: is a directory, expected a file",
                       subject, path.c_str());
  }
  if ((info.st_mode & (S_IWGRP | S_IRWXO)) != 0) {
    return Error::make(Code::kPermission,
                       "%s %.120s: has mode %04o, expected one that other users can "
                       "neither read nor write, such as 0600",
                       subject, path.c_str(), static_cast<unsigned>(info.st_mode & 07777));
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Error::make(Code::kPermission,
                       "%s %.120s: belongs to user %u, expected one of this user or "
                       "of root",
                       subject, path.c_str(), info.st_uid);
  }
  unsigned char text[80];
  const ssize_t count = ::read(file.get(), text, sizeof text);
  if (count < 0) return Error::from_errno(errno, "%s %.160s: read", subject, path.c_str());
  SecretKey key;
  bool is_key = count == 32;
  if (is_key) std::memcpy(key.bytes.data(), text, 32);
  if (count == 64 || (count == 65 && text[64] == '\n')) {
    is_key = std::all_of(text, text + 64, [](unsigned char c) { return hex_digit(c) >= 0; });
    for (std::size_t i = 0; is_key && i < 32; ++i) {
      key.bytes[i] =
          static_cast<unsigned char>(hex_digit(text[2 * i]) * 16 + hex_digit(text[2 * i + 1]));
    }
  }
  explicit_bzero(text, sizeof text);
  if (is_key) return key;
  return Error::make(Code::kInvalidArgument,
                     "%s %.120s: holds %s%zd bytes, expected 32 bytes or 64 "
                     "hexadecimal digits",
                     subject, path.c_str(),
                     count == static_cast<ssize_t>(sizeof text) ? "at least " : "", count);
}

}  // namespace cachalot::os

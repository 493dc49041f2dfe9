#include "storage/shared/object_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>

#include "base/rng.h"
#include "os/file_descriptor.h"
#include "storage/file/segment.h"
#include "storage/value.h"

namespace cachalot::storage {
namespace {

using os::FileDescriptor;

constexpr std::size_t kKeyDigits = 64, kFolderDigits = 3, kRandomDigits = 16;
constexpr std::int64_t kTouchNs = 3'600'000'000'000;

Error failed(const Directory& root, const char* what) {
  Error error = Error::from_errno(errno, "storage directory %.120s: %s", root.path().c_str(), what);
  if (out_of_descriptors(error)) error.code = Code::kNoSpace;
  return error;
}

Error not_found() {
  return Error::make(Code::kNotFound, "storage: has no such object");
}

// Whether a name that could not be opened is that of no object: absent, a link, a socket, or not ours.
bool is_absence(int os_error) {
  return os_error == ENOENT || os_error == ENOTDIR || os_error == ELOOP || os_error == ENXIO;
}

std::string folder_of(std::string_view name) {
  return std::string(name.substr(kKeyDigits - kFolderDigits, kFolderDigits));
}

// O_PATH: nothing is opened, so this asks the server for nothing but the name.
FileDescriptor open_folder(const Directory& root, const std::string& folder) {
  return FileDescriptor(
      ::openat(root.fd(), folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

Result<FileDescriptor> make_folder(const Directory& root, const std::string& folder) {
  FileDescriptor opened = open_folder(root, folder);
  if (!opened && errno == ENOENT) {
    if (::mkdirat(root.fd(), folder.c_str(), root.folder_mode()) == 0) {
      if (root.has_shared_modes())  // whatever the umask says
        (void)::fchmodat(root.fd(), folder.c_str(), root.folder_mode(), 0);
    } else if (errno != EEXIST) {
      return failed(root, "make a folder");
    }
    opened = open_folder(root, folder);
  }
  if (!opened) return failed(root, "open a folder");
  return opened;
}

struct OpenObject {
  FileDescriptor file;
  struct stat status;
};

// @errors kNotFound: also what is no object
Result<OpenObject> open_object(const Directory& root, const ObjectKey& key) {
  const std::string name = to_text(key);
  const FileDescriptor folder = open_folder(root, folder_of(name));
  if (!folder && is_absence(errno)) return not_found();
  if (!folder) return failed(root, "open a folder");
  // Without waiting: a pipe may stand there.
  OpenObject object{
      FileDescriptor(::openat(folder.get(), name.c_str(),
                              O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)),
      {}};
  if (!object.file && (is_absence(errno) || errno == EACCES)) return not_found();
  if (!object.file || ::fstat(object.file.get(), &object.status) != 0) {
    if (errno == ESTALE) return not_found();  // replaced or removed since it was opened
    return failed(root, "open an object");
  }
  if (!S_ISREG(object.status.st_mode) || !root.check_owner(object.status, name)) return not_found();
  return object;
}

// @return how many: fewer at the end of the file
Result<std::uint64_t> read_all(const Directory& root, int file, Room room) {
  std::uint64_t at = 0;
  while (at < room.size()) {
    const ssize_t some = ::pread(file, room.data() + at, room.size() - at, static_cast<off_t>(at));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0 && errno == ESTALE) return not_found();  // another host has replaced or removed it
    if (some < 0) return failed(root, "read an object");
    if (some == 0) break;
    at += static_cast<std::uint64_t>(some);
  }
  return at;
}

bool write_all(int file, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t some = ::write(file, bytes.data(), bytes.size());
    if (some < 0 && errno == EINTR) continue;
    if (some == 0) errno = EIO;
    if (some <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(some));
  }
  return true;
}

std::string random_digits() {
  static std::atomic<std::uint64_t> next{std::random_device{}() *
                                         std::uint64_t{0x9e3779b97f4a7c15}};
  char digits[kRandomDigits + 1];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, base::mix64(next.fetch_add(1)));
  return digits;
}

std::int64_t ns_of(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// A use, for the order of eviction. Another user's, or of a file system that is read-only: it keeps its age.
void renew(const OpenObject& object) {
  constexpr timespec kTimes[] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  if (now_ns - ns_of(object.status.st_mtim) >= kTouchNs)
    (void)::futimens(object.file.get(), kTimes);
}

}  // namespace

std::string folder_name(std::uint32_t number) {
  char name[kFolderDigits + 1];
  std::snprintf(name, sizeof name, "%03x", number % kObjectFolders);
  return name;
}

Status write_object(const Directory& root, const ObjectKey& key, Bytes value) {
  const std::string name = to_text(key);
  CACHALOT_TRY_ASSIGN(const FileDescriptor folder, make_folder(root, folder_of(name)));
  const std::string unfinished = name + "." + random_digits() + std::string(kUnfinished);
  FileDescriptor file(::openat(folder.get(), unfinished.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return failed(root, "make an object");
  bool is_written = write_all(file.get(), value);
  if (is_written && root.has_shared_modes())
    is_written = ::fchmod(file.get(), root.file_mode()) == 0;
  // A network file system may say only here that the disk is full. After EINTR the file is closed, too.
  int os_error = is_written ? 0 : errno;
  if (::close(file.release()) != 0 && os_error == 0) os_error = errno;
  if (os_error == 0 &&
      ::renameat(folder.get(), unfinished.c_str(), folder.get(), name.c_str()) == 0)
    return {};
  if (os_error == 0) os_error = errno;
  (void)::unlinkat(folder.get(), unfinished.c_str(), 0);
  errno = os_error;
  return failed(root, "write an object");
}

Result<Value> read_object(const Directory& root, const ObjectKey& key, std::uint64_t most_bytes) {
  CACHALOT_TRY_ASSIGN(const OpenObject object, open_object(root, key));
  const auto size = static_cast<std::uint64_t>(object.status.st_size);
  Value value = Value::unset(size <= most_bytes ? size : std::min(most_bytes, kHeadBytes));
  CACHALOT_TRY_ASSIGN(value.size,
                      read_all(root, object.file.get(), {value.bytes.get(), value.size}));
  renew(object);
  return value;
}

Result<std::optional<ObjectHead>> read_head(const Directory& root, const ObjectKey& key,
                                            bool is_use) {
  const Result<OpenObject> object = open_object(root, key);
  if (!object && object.error().code == Code::kNotFound) return std::optional<ObjectHead>();
  if (!object) return object.error();
  std::byte bytes[kHeadBytes];
  const Result<std::uint64_t> size = read_all(root, object->file.get(), bytes);
  if (!size && size.error().code == Code::kNotFound) return std::optional<ObjectHead>();
  if (!size) return size.error();
  const Result<ObjectHead> head = head_of_value(Bytes(bytes).first(*size));
  const bool is_whole = head && check_head(*head, key) &&
                        value_bytes(*head) == static_cast<std::uint64_t>(object->status.st_size);
  if (!is_whole) return std::optional<ObjectHead>();
  if (is_use) renew(*object);
  return std::optional(*head);
}

Status remove_object(const Directory& root, const ObjectKey& key) {
  const std::string name = to_text(key);
  const FileDescriptor folder = open_folder(root, folder_of(name));
  const bool is_gone = folder && ::unlinkat(folder.get(), name.c_str(), 0) == 0;
  if (is_gone || is_absence(errno) || errno == EISDIR) return {};
  return failed(root, "remove an object");
}

Status remove_file(const Directory& root, std::uint32_t folder, const std::string& name) {
  const std::string path = folder_name(folder) + "/" + name;
  if (::unlinkat(root.fd(), path.c_str(), 0) == 0) return {};
  return failed(root, "remove an object");
}

Result<std::vector<StoredFile>> read_folder(const Directory& root, std::uint32_t number,
                                            bool looks_at_objects) {
  const std::string folder = folder_name(number);
  CACHALOT_TRY_ASSIGN(std::vector<std::string> names, root.names(folder));
  std::vector<StoredFile> files;
  for (std::string& name : names) {
    const std::string_view digits = std::string_view(name).substr(0, kKeyDigits);
    if (!parse_object_key(digits) || folder_of(digits) != folder) continue;
    const bool is_object = name.size() == kKeyDigits;
    if (!is_object && (name.size() != kKeyDigits + 1 + kRandomDigits + kUnfinished.size() ||
                       !name.ends_with(kUnfinished)))
      continue;
    files.push_back({.name = std::move(name), .is_object = is_object});
    struct stat status {};
    if (is_object && !looks_at_objects) continue;
    const std::string path = folder + "/" + files.back().name;
    if (::fstatat(root.fd(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
      continue;
    files.back().bytes = static_cast<std::uint64_t>(status.st_size);
    files.back().changed_ns = ns_of(status.st_mtim);
  }
  return files;
}

}  // namespace cachalot::storage

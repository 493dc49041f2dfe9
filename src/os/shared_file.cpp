#include "os/shared_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/byte_size.h"
#include "os/owner.h"
#include "os/reserve.h"

namespace cachalot::os {
namespace {

constexpr std::string_view kMemfdPrefix = "memfd:";
constexpr std::string_view kShmPrefix = "shm:";

bool starts_with(const std::string& text, std::string_view prefix) {
  return std::string_view(text).substr(0, prefix.size()) == prefix;
}

// "shm:NAME" as the path that shm_open would use; other paths as they are.
Result<std::string> real_path(const std::string& path) {
  if (path.empty()) return Error::make(Code::kInvalidArgument, "the path is empty");
  if (path.find('\0') != std::string::npos) {
    return Error::make(Code::kInvalidArgument, "%.120s: a zero byte in the path", path.c_str());
  }
  if (!starts_with(path, kShmPrefix)) return path;
  const std::string name = path.substr(kShmPrefix.size());
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    return Error::make(Code::kInvalidArgument, "%.120s: after shm: comes a name without a slash",
                       path.c_str());
  }
  return "/dev/shm/" + name;
}

std::string descriptor_path(int fd) {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
}

// /sys/dev/char/MAJOR:MINOR/ATTRIBUTE, a decimal number; 0 where there is none.
std::uint64_t device_attribute(const struct stat& status, const char* attribute) {
  char name[96];
  std::snprintf(name, sizeof name, "/sys/dev/char/%u:%u/%s", major(status.st_rdev),
                minor(status.st_rdev), attribute);
  std::FILE* file = std::fopen(name, "re");
  if (file == nullptr) return 0;
  std::uint64_t value = 0;
  const bool read = std::fscanf(file, "%" SCNu64, &value) == 1;
  std::fclose(file);
  return read ? value : 0;
}

bool is_devdax(const struct stat& status) {
  char name[96], target[512];
  std::snprintf(name, sizeof name, "/sys/dev/char/%u:%u/subsystem", major(status.st_rdev),
                minor(status.st_rdev));
  const ssize_t length = readlink(name, target, sizeof target);
  return length > 0 && std::string_view(target, static_cast<std::size_t>(length)).ends_with("/dax");
}

// Looked at before opening: opening alone can hang (a FIFO) or do something (a tape).
Status must_be_mappable(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return {};
  if (S_ISCHR(status.st_mode) && is_devdax(status)) return {};
  const char* kind =
      S_ISDIR(status.st_mode) ? "a directory" : "not a regular file or devdax device";
  return Error::make(Code::kInvalidArgument, "%.120s: %s", path.c_str(), kind);
}

bool is_dax_file(int fd) {
#ifdef STATX_ATTR_DAX
  struct statx status {};
  return statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_DAX) != 0;
#else
  return false;
#endif
}

Status check_new_size(const std::string& path, std::uint64_t bytes) {
  if (bytes > 0 && bytes <= static_cast<std::uint64_t>(INT64_MAX) - kMapAlignmentBytes) return {};
  return Error::make(Code::kInvalidArgument, "%.120s: a file cannot have %" PRIu64 " bytes",
                     path.c_str(), bytes);
}

Result<FileDescriptor> new_memfd(const std::string& path) {
  FileDescriptor fd(
      memfd_create(path.c_str() + kMemfdPrefix.size(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Error::from_errno(errno, "%.120s: memfd_create", path.c_str());
  return fd;
}

// A file among the devices is a device that is not there: a typing error, or a driver that was not loaded. Such a file
// takes the memory of /dev and is gone with the next boot.
Status check_outside_devices(const std::string& path) {
  constexpr std::string_view kDevices = "/dev", kSharedMemory = "/dev/shm";
  std::error_code unknown;
  const std::string parent =
      std::filesystem::canonical(std::filesystem::absolute(path, unknown).parent_path(), unknown)
          .string();
  const auto is_in = [&](std::string_view folder) {
    return parent == folder || starts_with(parent, std::string(folder) + "/");
  };
  if (unknown || !is_in(kDevices) || is_in(kSharedMemory)) return {};
  struct stat devices {};
  struct stat its {};
  if (::stat(kDevices.data(), &devices) != 0 || ::stat(parent.c_str(), &its) != 0) return {};
  if (its.st_dev != devices.st_dev) return {};  // hugetlbfs, a tmpfs of its own
  Error absent = Error::make(Code::kNotFound,
                             "%.120s: no such device; expected one that exists, or a file "
                             "elsewhere, as /dev/shm/kv",
                             path.c_str());
  absent.os_error = ENOENT;  // as of every other path that is not there
  return absent;
}

Result<FileDescriptor> new_file(const std::string& path, unsigned mode) {
  CACHALOT_TRY(check_outside_devices(path));
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd && errno == EEXIST) {
    return Error::make(Code::kBusy, "%.120s: exists already", path.c_str());
  }
  if (!fd) return Error::from_errno(errno, "%.120s: creating", path.c_str());
  return fd;
}

}  // namespace

Result<std::optional<FilePart>> parse_file_part(const std::string& path) {
  const std::size_t at = path.rfind('@');
  const std::size_t plus = at == std::string::npos ? at : path.find('+', at);
  const auto is_digit = [&](std::size_t i) {
    return i < path.size() && path[i] >= '0' && path[i] <= '9';
  };
  if (plus == std::string::npos || at == 0 || !is_digit(at + 1) || !is_digit(plus + 1) ||
      path.find('/', at) != std::string::npos || access(path.c_str(), F_OK) == 0) {
    return std::optional<FilePart>();
  }
  FilePart part;
  part.path = path.substr(0, at);
  const std::string offset = path.substr(at + 1, plus - at - 1), length = path.substr(plus + 1);
  CACHALOT_TRY_ASSIGN(part.offset, base::parse_byte_size(path.c_str(), offset));
  CACHALOT_TRY_ASSIGN(part.bytes, base::parse_byte_size(path.c_str(), length));
  std::uint64_t end = 0;
  if (part.offset % kMapAlignmentBytes != 0 || part.bytes % kMapAlignmentBytes != 0 ||
      part.bytes == 0 || __builtin_add_overflow(part.offset, part.bytes, &end)) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: expected PATH@OFFSET+LENGTH with multiples of 2 MiB, LENGTH not 0",
                       path.c_str());
  }
  return std::optional(std::move(part));
}

Result<SharedFile> SharedFile::create(const std::string& path, std::uint64_t bytes,
                                      const CreateOptions& options) {
  CACHALOT_TRY_ASSIGN(const std::string real, real_path(path));
  CACHALOT_TRY(check_new_size(path, bytes));
  if (starts_with(path, kMemfdPrefix)) {
    CACHALOT_TRY_ASSIGN(FileDescriptor fd, new_memfd(path));
    SharedFile file(std::move(fd), path, FileKind::kMemfd, Access::kReadWrite);
    CACHALOT_TRY(file.fill(bytes, options));
    file.path_ = file.file_path_ = descriptor_path(file.fd());
    return file;
  }
  CACHALOT_TRY_ASSIGN(const std::optional<FilePart> part, parse_file_part(real));
  struct stat status {};
  if (part || (stat(real.c_str(), &status) == 0 && !S_ISREG(status.st_mode))) {
    CACHALOT_TRY_ASSIGN(SharedFile device, open(real));
    if (device.bytes_ >= bytes) return device;
    Error error =
        Error::make(Code::kNoSpace, "%.120s: %" PRIu64 " bytes wanted, %" PRIu64 " available",
                    real.c_str(), bytes, device.bytes_);
    error.detail = device.bytes_;
    return error;
  }
  CACHALOT_TRY_ASSIGN(FileDescriptor fd, new_file(real, options.mode));
  SharedFile file(std::move(fd), real, FileKind::kFile, Access::kReadWrite);
  if (options.named) options.named(file.fd());
  const Status filled = file.fill(bytes, options);
  if (!filled) {
    static_cast<void>(file.remove());  // the first error is the one to tell
    return filled.error();
  }
  return file;
}

Status SharedFile::fill(std::uint64_t bytes, const CreateOptions& options) {
  CACHALOT_TRY(reserve_space(fd(), path_.c_str(), bytes, options.huge_pages));
  if (kind_ == FileKind::kMemfd &&
      fcntl(fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Error::from_errno(errno, "%.120s: sealing", path_.c_str());
  }
  return inspect();
}

Result<SharedFile> SharedFile::open(const std::string& path, Access access, Owners owners) {
  CACHALOT_TRY_ASSIGN(SharedFile file, open_named(path, access));
  if (owners == Owners::kTrusted) CACHALOT_TRY(file.check_owner());
  if (file.bytes_ == 0) return Error::make(Code::kBadInput, "%.120s: is empty", file.path_.c_str());
  return file;
}

Result<SharedFile> SharedFile::peek(const std::string& path) {
  return open_named(path, Access::kReadOnly);
}

Result<SharedFile> SharedFile::open_named(const std::string& path, Access access) {
  if (starts_with(path, kMemfdPrefix)) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: a memfd has no name to open it by; use /proc/PID/fd/N of the "
                       "process that created it",
                       path.c_str());
  }
  CACHALOT_TRY_ASSIGN(std::string real, real_path(path));
  CACHALOT_TRY_ASSIGN(const std::optional<FilePart> part, parse_file_part(real));
  if (part) real = part->path;
  struct stat status {};
  if (stat(real.c_str(), &status) != 0) {
    return Error::from_errno(errno, "%.120s: opening", real.c_str());
  }
  CACHALOT_TRY(must_be_mappable(real, status));
  const int flags = access == Access::kReadWrite ? O_RDWR : O_RDONLY;
  FileDescriptor fd(::open(real.c_str(), flags | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return Error::from_errno(errno, "%.120s: opening", real.c_str());
  SharedFile file(std::move(fd), real, FileKind::kFile, access);
  CACHALOT_TRY(file.inspect());
  if (part) CACHALOT_TRY(file.narrow(*part));
  return file;
}

Status SharedFile::narrow(const FilePart& part) {
  path_ = file_path_ + "@" + std::to_string(part.offset) + "+" + std::to_string(part.bytes);
  if (part.offset % page_bytes_ != 0 || part.bytes % page_bytes_ != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: expected multiples of the device's alignment, %" PRIu64 " bytes",
                       path_.c_str(), page_bytes_);
  }
  if (part.offset + part.bytes > bytes_) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: ends behind the file or device, which has %" PRIu64 " bytes",
                       path_.c_str(), bytes_);
  }
  is_part_ = true;
  offset_ = part.offset;
  bytes_ = part.bytes;
  return {};
}

Status SharedFile::inspect() {
  struct stat status {};
  if (fstat(fd(), &status) != 0) return Error::from_errno(errno, "%.120s: stat", path_.c_str());
  CACHALOT_TRY(must_be_mappable(path_, status));  // again: the name may be another file's by now
  if (S_ISCHR(status.st_mode)) {
    kind_ = FileKind::kDevdax;
    pages_ = PageMode::kDax;
    const std::uint64_t alignment = device_attribute(status, "align");
    page_bytes_ = std::has_single_bit(alignment) ? alignment : kMapAlignmentBytes;
  } else {
    if (status.st_nlink == 0 && kind_ == FileKind::kFile) {
      kind_ = FileKind::kMemfd;
      path_ = file_path_ = descriptor_path(fd());
    }
    struct statfs fs {};
    if (fstatfs(fd(), &fs) != 0) return Error::from_errno(errno, "%.120s: statfs", path_.c_str());
    if (fs.f_type == HUGETLBFS_MAGIC) {
      pages_ = PageMode::kHugetlb;
      page_bytes_ = static_cast<std::uint64_t>(fs.f_bsize);
    } else if (is_dax_file(fd())) {
      pages_ = PageMode::kDax;
    }
  }
  CACHALOT_TRY_ASSIGN(bytes_, current_bytes());
  return {};
}

// Of a memfd only the owner counts: its mode lets all write, but no name leads to it, and /proc shows it
// to processes of its owner only.
Status SharedFile::check_owner() const {
  struct stat status {};
  if (fstat(fd(), &status) != 0) return Error::from_errno(errno, "%.120s: stat", path_.c_str());
  return os::check_owner(status, kind_ == FileKind::kMemfd ? 0 : S_IWOTH, path_.c_str(),
                         "--allow-foreign-pool, allow_foreign_pool");
}

Result<std::uint64_t> SharedFile::current_bytes() const {
  struct stat status {};
  if (fstat(fd(), &status) != 0) return Error::from_errno(errno, "%.120s: stat", path_.c_str());
  if (kind_ == FileKind::kDevdax) return device_attribute(status, "size");
  return static_cast<std::uint64_t>(status.st_size);
}

Result<Mapping> SharedFile::map(const MapOptions& options, std::uint64_t bytes) const {
  if (bytes == 0) bytes = bytes_;
  if (bytes > bytes_) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: %" PRIu64 " bytes to map, the file has %" PRIu64, path_.c_str(),
                       bytes, bytes_);
  }
  if (access_ == Access::kReadOnly && !options.read_only) {
    return Error::make(Code::kPermission, "%.120s: opened for reading, mapped for writing",
                       path_.c_str());
  }
  const MapSource source{fd(), path_.c_str(), page_bytes_, pages_, offset_};
  return Mapping::map_shared(source, bytes, options);
}

Status SharedFile::map_at(std::byte* where, std::uint64_t from, std::uint64_t bytes,
                          const MapOptions& options) const {
  if (bytes > bytes_ || from > bytes_ - bytes) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: %" PRIu64 " bytes to map from %" PRIu64
                       " on, the file has %" PRIu64,
                       path_.c_str(), bytes, from, bytes_);
  }
  const MapSource source{fd(), path_.c_str(), page_bytes_, pages_, offset_ + from};
  return os::map_at(where, source, bytes, options);
}

Status SharedFile::require_bytes(std::uint64_t bytes) const {
  CACHALOT_TRY_ASSIGN(const std::uint64_t whole, current_bytes());
  std::uint64_t now = whole > offset_ ? whole - offset_ : 0;
  if (is_part_) now = std::min(now, bytes_);
  if (now >= bytes) return {};
  Error error = Error::make(Code::kCorrupt, "%.120s: has %" PRIu64 " bytes, must have %" PRIu64,
                            path_.c_str(), now, bytes);
  error.detail = now;
  return error;
}

Status SharedFile::remove() const {
  if (kind_ != FileKind::kFile || is_part_) return {};
  struct stat mine {
  }, named{};
  if (fstat(fd(), &mine) != 0) return Error::from_errno(errno, "%.120s: stat", path_.c_str());
  if (lstat(path_.c_str(), &named) != 0) {
    if (errno == ENOENT) return {};
    return Error::from_errno(errno, "%.120s: removing", path_.c_str());
  }
  if (mine.st_dev != named.st_dev || mine.st_ino != named.st_ino) return {};
  if (unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return Error::from_errno(errno, "%.120s: removing", path_.c_str());
  }
  return {};
}

bool SharedFile::overlaps(const SharedFile& other) const {
  if (offset_ + bytes_ <= other.offset_ || other.offset_ + other.bytes_ <= offset_) return false;
  struct stat mine {
  }, theirs{};
  if (fstat(fd(), &mine) != 0 || fstat(other.fd(), &theirs) != 0) return false;
  if (kind_ == FileKind::kDevdax && other.kind_ == FileKind::kDevdax) {
    return mine.st_rdev == theirs.st_rdev;  // two nodes of one device are two inodes
  }
  return mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
}

}  // namespace cachalot::os

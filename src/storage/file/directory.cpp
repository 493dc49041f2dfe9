#include "storage/file/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string_view>

#include "os/owner.h"

namespace cachalot::storage {
namespace {

constexpr const char* kMarkName = "cachalot-storage";
constexpr std::string_view kMarkStart = "cachalot ";
constexpr const char* kVersion = "1";
constexpr std::string_view kSegmentStart = "segment-";
constexpr std::size_t kDigits = 8;  // at least, of a segment's number
constexpr std::uint64_t kOwnerByte = std::uint64_t{1} << 40;

// "segment-00000042" exactly.
std::optional<std::uint32_t> number_of(std::string_view name) {
  if (!name.starts_with(kSegmentStart)) return {};
  std::uint32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, failed] = std::from_chars(name.data() + kSegmentStart.size(), end, number);
  if (failed != std::errc() || stop != end || Directory::segment_name(number) != name) return {};
  return number;
}

// Whether the path leads to what is open.
bool is_at(int fd, const std::string& path) {
  struct stat ours {
  }, there{};
  return ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

}  // namespace

// --- Opening ---------------------------------------------------------------------------------------

Result<Directory> Directory::open(const std::string& path, os::Owners owners,
                                  const std::string& kind, Use use) {
  const bool is_made = use == Use::kAlone && ::mkdir(path.c_str(), 0700) == 0;
  if (use == Use::kAlone && !is_made && errno != EEXIST) {
    return Error::from_errno(errno, "storage directory %.160s: make it", path.c_str());
  }
  os::FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!folder && errno == ENOENT && use != Use::kAlone) {
    return Error::make(Code::kInvalidArgument,
                       "storage directory %.120s: is not there; expected one that was made in the "
                       "file system that the hosts share",
                       path.c_str());
  }
  if (!folder || ::fstat(folder.get(), &status) != 0)
    return Error::from_errno(errno, "storage directory %.160s", path.c_str());
  Directory directory(path, owners, std::move(folder));
  directory.made_.folder = is_made;
  if (use != Use::kAlone) {
    if ((status.st_mode & S_IWGRP) != 0) directory.shared_bits_ |= S_IRWXG;
    if ((status.st_mode & S_IWOTH) != 0) directory.shared_bits_ |= S_IRWXO;
    if (directory.shared_bits_ != 0) directory.shared_bits_ |= status.st_mode & S_ISGID;
  }
  CACHALOT_TRY(directory.check_owner(status, ""));
  CACHALOT_TRY(directory.take_mark(kind, use));
  return directory;
}

Status Directory::check_owner(const struct stat& status, const std::string& name) const {
  if (owners_ == os::Owners::kAny) return {};
  const std::string shown =
      name.empty() ? "storage directory " + path_ : "storage file " + path_ + "/" + name;
  return os::check_owner(status, S_IWGRP | S_IWOTH, shown.c_str(), "?allow_foreign=1");
}

Status Directory::take_mark(const std::string& kind, Use use) {
  // One that is only read may lie in a file system that is read-only.
  const int access = use == Use::kAlone ? O_RDWR : O_RDONLY;
  const auto open_mark = [this, access] {
    // Looked at before: opening a device may do something.
    struct stat status {};
    if (::fstatat(fd(), kMarkName, &status, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(status.st_mode)) {
      errno = ELOOP;
      return -1;
    }
    return ::openat(fd(), kMarkName, access | O_CLOEXEC | O_NOFOLLOW);
  };
  mark_ = os::FileDescriptor(open_mark());
  if (!mark_ && errno == ENOENT && use == Use::kAgain) {
    return Error::make(Code::kNotFound,
                       "storage directory %.120s: has no file %s any more: another directory is in "
                       "its place, or it is not mounted; mount it, or start this process again",
                       path_.c_str(), kMarkName);
  }
  if (!mark_ && errno == ENOENT) {
    CACHALOT_TRY(make_mark(kind, use));
    made_.mark = true;
    mark_ = os::FileDescriptor(open_mark());
  }
  if (!mark_ && errno == ELOOP) {
    return Error::make(Code::kBadInput,
                       "storage directory %.120s: its %s is a link, a directory or a device, "
                       "expected a file",
                       path_.c_str(), kMarkName);
  }
  struct stat status {};
  if (!mark_ || ::fstat(mark_.get(), &status) != 0)
    return Error::from_errno(errno, "storage directory %.160s", path_.c_str());
  CACHALOT_TRY(check_owner(status, kMarkName));
  CACHALOT_TRY(check_mark(kind));
  return use == Use::kAlone ? lock() : Status();
}

Result<std::vector<std::string>> Directory::names(const std::string& in) const {
  os::FileDescriptor copy(
      ::openat(fd(), in.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(copy ? ::fdopendir(copy.get()) : nullptr,
                                                   closedir);
  if (!folder) return Error::from_errno(errno, "storage directory %.160s", path_.c_str());
  (void)copy.release();
  std::vector<std::string> names;
  while (const dirent* const one = readdir(folder.get())) {
    const std::string_view name = one->d_name;
    // mkfs puts lost+found into an empty file system
    if (name != "." && name != ".." && name != "lost+found") names.emplace_back(name);
  }
  return names;
}

// Makes the mark in an empty directory, or in one where only unfinished files are.
Status Directory::make_mark(const std::string& kind, Use use) {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> found, names());
  for (const std::string& name : found) {
    if (use == Use::kRestored || std::string_view(name).starts_with(kMarkName)) continue;
    // Another process may just have made it and its first files.
    if (::faccessat(fd(), kMarkName, F_OK, AT_SYMLINK_NOFOLLOW) == 0) return {};
    return Error::make(Code::kInvalidArgument,
                       "storage directory %.120s: has other files (%.60s), expected an empty "
                       "directory or one that a storage was made in",
                       path_.c_str(), name.c_str());
  }
  // A link makes it whole or not at all, and only once if two processes do so.
  const std::string text = std::string(kMarkStart) + kind + " " + kVersion + "\n";
  const std::string unfinished = std::string(kMarkName) + "." +
                                 std::to_string(std::random_device{}()) + std::string(kUnfinished);
  const os::FileDescriptor file(
      ::openat(fd(), unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      (has_shared_modes() && ::fchmod(file.get(), file_mode()) != 0)) {
    const int os_error = errno;
    if (file) (void)::unlinkat(fd(), unfinished.c_str(), 0);
    return Error::from_errno(os_error, "storage directory %.160s: make its mark", path_.c_str());
  }
  int linked = ::linkat(fd(), unfinished.c_str(), fd(), kMarkName, 0);
  // Some network file systems have no links. Two processes then give it the same text twice.
  if (linked != 0 && errno != EEXIST)
    linked = ::renameat(fd(), unfinished.c_str(), fd(), kMarkName);
  const int os_error = errno;
  (void)::unlinkat(fd(), unfinished.c_str(), 0);
  if (linked == 0 || os_error == EEXIST) return {};
  return Error::from_errno(os_error, "storage directory %.160s: make its mark", path_.c_str());
}

Status Directory::check_mark(const std::string& kind) const {
  char text[64] = {};
  const ssize_t bytes = ::pread(mark_.get(), text, sizeof text - 1, 0);
  if (bytes < 0) return Error::from_errno(errno, "storage directory %.160s: read", path_.c_str());
  std::string_view found(text, static_cast<std::size_t>(bytes));
  found = found.substr(0, found.find('\n'));
  const std::size_t last = found.rfind(' ');
  if (!found.starts_with(kMarkStart) || last + 1 == kMarkStart.size()) {
    return Error::make(Code::kBadInput,
                       "storage directory %.120s: its file %s begins with other text, expected "
                       "\"%sKIND VERSION\": it was not made by a storage, or is damaged",
                       path_.c_str(), kMarkName, kMarkStart.data());
  }
  const std::string version(found.substr(last + 1));
  const std::string found_kind(found.substr(kMarkStart.size(), last - kMarkStart.size()));
  if (found_kind != kind) {
    return Error::make(Code::kInvalidArgument,
                       "storage directory %.120s: belongs to another kind: \"%.20s\", expected "
                       "\"%s\"%s",
                       path_.c_str(), found_kind.c_str(), kind.c_str(),
                       found_kind == "shared" ? ": file:DIR?shared=1 opens it" : "");
  }
  if (version == kVersion) return {};
  return Error::make(Code::kVersionMismatch, "storage directory %.120s: version %.20s, expected %s",
                     path_.c_str(), version.c_str(), kVersion);
}

Status Directory::lock() {
  Result<os::FileLock> lock = os::FileLock::try_lock(mark_.get(), kOwnerByte, os::Forks::kLeave);
  if (!lock && lock.error().code == Code::kBusy) {
    return Error::make(Code::kBusy, "storage directory %.160s: another process uses it",
                       path_.c_str());
  }
  if (!lock) return lock.error();
  struct stat info {};
  if (::fstat(mark_.get(), &info) == 0 && info.st_nlink == 0) {
    return Error::make(Code::kBusy, "storage directory %.160s: another process just removed it",
                       path_.c_str());
  }
  lock_.emplace(*std::move(lock));
  return {};
}

// --- In use ----------------------------------------------------------------------------------------

Directory::~Directory() {
  if (!mark_ || !lock_ || !made_.mark || !check()) return;
  const Result<std::vector<std::string>> found = names();
  if (!found || *found != std::vector<std::string>{kMarkName}) return;
  (void)::unlinkat(fd(), kMarkName, 0);
  if (made_.folder) (void)::rmdir(path_.c_str());
}

bool Directory::is_at_path() const {
  return is_at(fd(), path_);
}

Status Directory::check() const {
  if (is_at(mark_.get(), path_ + "/" + kMarkName)) return {};
  return Error::make(Code::kNotFound,
                     "storage directory %.160s: was removed or moved while it was used; move it "
                     "back, or start this process again",
                     path_.c_str());
}

std::string Directory::segment_name(std::uint32_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kSegmentStart) +
         std::string(digits.size() < kDigits ? kDigits - digits.size() : 0, '0') + digits;
}

Result<std::vector<std::uint32_t>> Directory::segments() const {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> found, names());
  std::vector<std::uint32_t> numbers;
  for (const std::string& name : found) {
    std::string_view start = name;
    const bool is_unfinished = start.ends_with(kUnfinished);
    if (is_unfinished) start.remove_suffix(kUnfinished.size());
    const std::optional<std::uint32_t> number = number_of(start);
    if (number && is_unfinished) (void)::unlinkat(fd(), name.c_str(), 0);
    if (number && !is_unfinished) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace cachalot::storage

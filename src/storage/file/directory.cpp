#include "storage/file/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

namespace cachalot::storage {
namespace {

constexpr const char* kMarkName = "cachalot-storage";
constexpr std::string_view kMarkStart = "cachalot ";
constexpr const char* kVersion = "1";
constexpr std::string_view kSegmentStart = "segment-";
constexpr std::string_view kUnfinished = ".new";
constexpr std::uint64_t kOwnerByte = std::uint64_t{1} << 40;

Result<std::vector<std::string>> names_in(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (!folder) return Error::from_errno(errno, "storage directory %.160s", path.c_str());
  std::vector<std::string> names;
  while (const dirent* const one = readdir(folder.get())) {
    const std::string_view name = one->d_name;
    // mkfs puts lost+found into an empty file system
    if (name != "." && name != ".." && name != "lost+found") names.emplace_back(name);
  }
  return names;
}

// Makes the mark in an empty directory, or in one where only unfinished files are.
Status make_mark(const std::string& path, const std::string& mark, const std::string& text) {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> names, names_in(path));
  for (const std::string& name : names) {
    if (std::string_view(name).starts_with(kMarkName)) continue;
    return Error::make(Code::kInvalidArgument,
                       "storage directory %.120s: has other files (%.60s), expected an empty "
                       "directory or one that a storage was made in",
                       path.c_str(), name.c_str());
  }
  // A link makes it whole or not at all, and only once if two processes do so.
  const std::string unfinished = mark + "." + std::to_string(getpid()) + std::string(kUnfinished);
  const os::FileDescriptor file(
      ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const int os_error = errno;
    (void)::unlink(unfinished.c_str());
    return Error::from_errno(os_error, "storage directory %.160s: make its mark", path.c_str());
  }
  const int linked = ::link(unfinished.c_str(), mark.c_str());
  const int os_error = errno;
  (void)::unlink(unfinished.c_str());
  if (linked == 0 || os_error == EEXIST) return {};
  return Error::from_errno(os_error, "storage directory %.160s: make its mark", path.c_str());
}

Status check_mark(const std::string& path, int fd, const std::string& kind) {
  char text[64] = {};
  const ssize_t bytes = ::pread(fd, text, sizeof text - 1, 0);
  if (bytes < 0) return Error::from_errno(errno, "storage directory %.160s: read", path.c_str());
  std::string_view found(text, static_cast<std::size_t>(bytes));
  found = found.substr(0, found.find('\n'));
  const std::size_t last = found.rfind(' ');
  if (!found.starts_with(kMarkStart) || last + 1 == kMarkStart.size()) {
    return Error::make(Code::kBadInput,
                       "storage directory %.120s: its file %s begins with other text, expected "
                       "\"%sKIND VERSION\": it was not made by a storage, or is damaged",
                       path.c_str(), kMarkName, kMarkStart.data());
  }
  const std::string version(found.substr(last + 1));
  const std::string found_kind(found.substr(kMarkStart.size(), last - kMarkStart.size()));
  if (found_kind != kind) {
    return Error::make(Code::kInvalidArgument,
                       "storage directory %.120s: belongs to another kind: \"%.20s\", expected "
                       "\"%s\"",
                       path.c_str(), found_kind.c_str(), kind.c_str());
  }
  if (version == kVersion) return {};
  return Error::make(Code::kVersionMismatch, "storage directory %.120s: version %.20s, expected %s",
                     path.c_str(), version.c_str(), kVersion);
}

}  // namespace

Result<Directory> Directory::open(const std::string& path, const std::string& kind) {
  Made has_made;
  has_made.folder = ::mkdir(path.c_str(), 0700) == 0;
  if (!has_made.folder && errno != EEXIST) {
    return Error::from_errno(errno, "storage directory %.160s: make it", path.c_str());
  }
  const std::string name = path + "/" + kMarkName;
  int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    CACHALOT_TRY(make_mark(path, name, std::string(kMarkStart) + kind + " " + kVersion + "\n"));
    has_made.mark = true;
    fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (fd < 0) return Error::from_errno(errno, "storage directory %.160s", path.c_str());
  os::FileDescriptor mark(fd);
  CACHALOT_TRY(check_mark(path, fd, kind));
  Result<os::FileLock> owner = os::FileLock::try_lock(fd, kOwnerByte, os::Forks::kLeave);
  if (!owner && owner.error().code == Code::kBusy) {
    return Error::make(Code::kBusy, "storage directory %.160s: another process uses it",
                       path.c_str());
  }
  if (!owner) return owner.error();
  struct stat info {};
  if (::fstat(fd, &info) == 0 && info.st_nlink == 0) {
    return Error::make(Code::kBusy, "storage directory %.160s: another process just removed it",
                       path.c_str());
  }
  return Directory(path, has_made, std::move(mark), *std::move(owner));
}

Directory::~Directory() {
  if (!mark_ || !made_.mark || !check()) return;
  const Result<std::vector<std::string>> names = names_in(path_);
  if (!names || *names != std::vector<std::string>{kMarkName}) return;
  (void)::unlink((path_ + "/" + kMarkName).c_str());
  if (made_.folder) (void)::rmdir(path_.c_str());
}

Status Directory::check() const {
  struct stat ours {
  }, there{};
  const bool is_there = ::fstat(mark_.get(), &ours) == 0 &&
                        ::stat((path_ + "/" + kMarkName).c_str(), &there) == 0 &&
                        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  if (is_there) return {};
  return Error::make(Code::kNotFound,
                     "storage directory %.160s: was removed or moved while it was used; move it "
                     "back, or start this process again",
                     path_.c_str());
}

std::string Directory::segment_path(std::uint32_t number) const {
  char name[32];
  std::snprintf(name, sizeof name, "/segment-%08u", number);
  return path_ + name;
}

Result<std::vector<std::uint32_t>> Directory::segments() const {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> names, names_in(path_));
  std::vector<std::uint32_t> numbers;
  for (const std::string& name : names) {
    if (!std::string_view(name).starts_with(kSegmentStart)) continue;
    if (std::string_view(name).ends_with(kUnfinished)) {
      (void)::unlink((path_ + "/" + name).c_str());
      continue;
    }
    std::uint32_t number = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, failed] = std::from_chars(name.data() + kSegmentStart.size(), end, number);
    if (failed == std::errc() && stop == end) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace cachalot::storage

#include "transfer/registry/file/file_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/clock.h"
#include "base/log.h"
#include "base/uri.h"
#include "transfer/registry/open_stores.h"

namespace cachalot::transfer {
namespace {

constexpr const char* kLockName = ".lock";
constexpr std::string_view kSuffix = ".peer";
constexpr std::uint64_t kRenewNs = 1'000'000'000;
constexpr int kOpenFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr int kMostLooks = 3;  // at a name whose file other processes replace

std::string file_of(std::string_view name) {
  return base::encode_percent(name, false) + std::string(kSuffix);
}

std::uint32_t left_ms(std::uint64_t deadline_ns) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  return deadline_ns > now_ns ? static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                    (deadline_ns - now_ns) / 1'000'000, 60'000))
                              : 0;
}

Status write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error::from_errno(errno, "write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

OpenedStore open_file_store(const base::Uri& uri) {
  CACHALOT_TRY_ASSIGN(const bool is_shared, uri.flag("shared", false));
  CACHALOT_TRY_ASSIGN(std::string path, uri.path());
  return FileStore::open(std::move(path), is_shared);
}

Result<std::unique_ptr<RecordStore>> FileStore::open(std::string path, bool is_shared) {
  std::unique_ptr<FileStore> store(new FileStore(std::move(path), is_shared));
  CACHALOT_TRY(store->open_directory());
  return std::unique_ptr<RecordStore>(std::move(store));
}

RecordStore::Timing FileStore::timing() const {
  return {.renew_ns = kRenewNs, .lapse_ns = ~std::uint64_t{0}};
}

// --- The directory ---------------------------------------------------------------------------------

// Opens it anew for each call: it may have been removed, and made again by another peer.
Result<os::FileDescriptor> FileStore::open_directory() const {
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, "%s: making the directory", where().c_str());
  os::FileDescriptor directory(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "%s: opening the directory", where().c_str());
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0)
    return Error::from_errno(errno, "%s: stat", where().c_str());
  if (is_shared_) return directory;
  if (status.st_uid != ::geteuid())
    return Error::make(Code::kPermission,
                       "%s: user %u owns the directory, expected %u (or \"?shared=1\")",
                       where().c_str(), status.st_uid, ::geteuid());
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return Error::make(Code::kPermission,
                       "%s: others may write the directory (mode %03o), expected 700 (or "
                       "\"?shared=1\")",
                       where().c_str(), status.st_mode & 0777u);
  return directory;
}

Result<os::FileLock> FileStore::lock_directory(int directory, std::uint64_t deadline_ns) const {
  os::FileDescriptor file(::openat(directory, kLockName, O_RDWR | kOpenFlags));
  if (!file && errno == ENOENT) {
    file = os::FileDescriptor(
        ::openat(directory, kLockName, O_RDWR | O_CREAT | O_EXCL | kOpenFlags, 0600));
    if (file && is_shared_) (void)::fchmod(file.get(), 0666);
    if (!file && errno == EEXIST)
      file = os::FileDescriptor(::openat(directory, kLockName, O_RDWR | kOpenFlags));
  }
  if (!file) return Error::from_errno(errno, "%s: opening .lock", where().c_str());
  Result<os::FileLock> lock =
      os::FileLock::lock_within(file.get(), 0, left_ms(deadline_ns), os::Forks::kLeave);
  if (!lock && lock.error().code == Code::kBusy)
    return Error::make(Code::kTimeout, "%s: another process held .lock until the deadline",
                       where().c_str());
  return lock;
}

// --- The own record --------------------------------------------------------------------------------

// Whether its file still has its name.
bool FileStore::is_in_place(int directory, const Held& held) {
  struct stat own = {}, named = {};
  return ::fstat(held.file.get(), &own) == 0 &&
         ::fstatat(directory, held.name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

Result<FileStore::Held> FileStore::write_record(int directory, const PeerRecord& record) const {
  const std::string temporary = ".new." + std::to_string(::geteuid());
  const auto failed = [&](const char* what) {
    return Error::from_errno(errno, "%s: peer \"%.60s\": %s", where().c_str(), record.name.c_str(),
                             what);
  };
  if (::unlinkat(directory, temporary.c_str(), 0) != 0 && errno != ENOENT)
    return failed("removing the last temporary file");
  os::FileDescriptor file(
      ::openat(directory, temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | kOpenFlags, 0600));
  if (!file) return failed("making a file");
  if (is_shared_ && ::fchmod(file.get(), 0644) != 0) return failed("chmod");
  CACHALOT_TRY(write_all(file.get(), encode(record)));
  CACHALOT_TRY_ASSIGN(os::FileLock lock, os::FileLock::try_lock(file.get(), 0, os::Forks::kLeave));
  std::string name = file_of(record.name);
  if (::renameat(directory, temporary.c_str(), directory, name.c_str()) != 0)
    return failed("giving the file its name");
  return Held{std::move(file), std::move(lock), std::move(name)};
}

Status FileStore::hold(const PeerRecord& record, std::uint64_t deadline_ns) {
  CACHALOT_TRY_ASSIGN(const os::FileDescriptor directory, open_directory());
  if (held_ && is_in_place(directory.get(), *held_)) return {};
  held_.reset();
  CACHALOT_TRY_ASSIGN(const os::FileLock lock, lock_directory(directory.get(), deadline_ns));
  const Result<Opened> opened = open_record(directory.get(), file_of(record.name));
  if (!opened && opened.error().code != Code::kNotFound) return opened.error();
  if (opened && opened->is_alive) {
    const Result<PeerRecord> holder = read_record(*opened, record.name);
    return Error::make(Code::kBusy, "%s: peer \"%.60s\" lives: %.90s", where().c_str(),
                       record.name.c_str(),
                       holder ? describe(*holder).c_str() : "its record cannot be read");
  }
  CACHALOT_TRY_ASSIGN(held_, write_record(directory.get(), record));
  return {};
}

Status FileStore::release(std::uint64_t deadline_ns) {
  if (!held_) return {};
  const Held held = *std::exchange(held_, std::nullopt);
  CACHALOT_TRY_ASSIGN(const os::FileDescriptor directory, open_directory());
  CACHALOT_TRY_ASSIGN(const os::FileLock lock, lock_directory(directory.get(), deadline_ns));
  if (is_in_place(directory.get(), held) &&
      ::unlinkat(directory.get(), held.name.c_str(), 0) != 0) {
    return Error::from_errno(errno, "%s: removing %.80s", where().c_str(), held.name.c_str());
  }
  return {};
}

// --- The records of others -------------------------------------------------------------------------

// @errors kNotFound: no such file; kIo: not a file
Result<FileStore::Opened> FileStore::open_record(int directory, const std::string& name) const {
  os::FileDescriptor file(::openat(directory, name.c_str(), O_RDONLY | kOpenFlags));
  if (!file) return Error::from_errno(errno, "%s: opening %.80s", where().c_str(), name.c_str());
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return Error::make(Code::kIo, "%s: %.80s is no regular file", where().c_str(), name.c_str());
  CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder, os::who_holds(file.get(), 0));
  return Opened{std::move(file), holder.has_value()};
}

Result<PeerRecord> FileStore::read_record(const Opened& opened, std::string_view name) const {
  std::string text(kMostRecordBytes + 1, '\0');  // one more, so that a longer one is noticed
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t some = ::pread(opened.file.get(), text.data() + bytes, text.size() - bytes,
                                 static_cast<off_t>(bytes));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return Error::from_errno(errno, "%s: reading a record", where().c_str());
    if (some == 0) break;
    bytes += static_cast<std::size_t>(some);
  }
  text.resize(bytes);
  return decode(text, name, where());
}

// False: not now, because another process makes or removes a record, or not by this user.
bool FileStore::remove_dead(int directory, const std::string& file) const {
  const Result<os::FileLock> lock = lock_directory(directory, 0);
  if (!lock) return false;
  const Result<Opened> opened = open_record(directory, file);
  if (!opened) return opened.error().code == Code::kNotFound;
  return opened->is_alive || ::unlinkat(directory, file.c_str(), 0) == 0;
}

Result<PeerRecord> FileStore::find_in(int directory, std::string_view name) const {
  const std::string file = file_of(name);
  for (int look = 0; look < kMostLooks; ++look) {
    const Result<Opened> opened = open_record(directory, file);
    if (!opened && opened.error().code != Code::kNotFound) return opened.error();
    if (opened && opened->is_alive) return read_record(*opened, name);
    if (!opened || !remove_dead(directory, file)) break;
  }
  return Error::make(Code::kNotFound, "%s: no live peer \"%.60s\"", where().c_str(),
                     std::string(name).c_str());
}

Result<PeerRecord> FileStore::find(std::string_view name, std::uint64_t) {
  CACHALOT_TRY_ASSIGN(const os::FileDescriptor directory, open_directory());
  return find_in(directory.get(), name);
}

Result<std::vector<PeerRecord>> FileStore::list(std::string_view prefix, std::uint64_t) {
  CACHALOT_TRY_ASSIGN(os::FileDescriptor directory, open_directory());
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(directory.get()), &::closedir);
  if (!entries) return Error::from_errno(errno, "%s: reading the directory", where().c_str());
  (void)directory.release();
  std::vector<PeerRecord> peers;
  while (const dirent* const entry = ::readdir(entries.get())) {
    const std::string_view file = entry->d_name;
    if (!file.ends_with(kSuffix)) continue;
    const Result<std::string> name =
        base::decode_percent(file.substr(0, file.size() - kSuffix.size()));
    if (!name || !name->starts_with(prefix) || file_of(*name) != file) continue;
    Result<PeerRecord> peer = find_in(::dirfd(entries.get()), *name);
    if (peer) {
      peers.push_back(*std::move(peer));
    } else if (peer.error().code != Code::kNotFound && bad_record_line_.is_due()) {
      base::log(base::LogLevel::kWarn, "registry", "%s", peer.error().message);
    }
    if (peers.size() > kMostPeers)
      return Error::make(Code::kNoSpace, "%s: more than %zu peers, expected a longer prefix",
                         where().c_str(), kMostPeers);
  }
  return peers;
}

}  // namespace cachalot::transfer

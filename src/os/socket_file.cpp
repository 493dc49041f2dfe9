#include "os/socket_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "os/file_descriptor.h"

namespace cachalot::os {
namespace {

constexpr int kPatienceMs = 1000;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: a path of %zu bytes; expected at most %zu, as sockets have them",
                       path.c_str(), path.size(), sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

const char* kind_of(mode_t mode) {
  return S_ISREG(mode)   ? "a file"
         : S_ISDIR(mode) ? "a directory"
         : S_ISLNK(mode) ? "a symbolic link"
                         : "no socket";
}

// @return whether a file is there
Result<bool> is_socket_there(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    return Error::from_errno(errno, "%.120s", path.c_str());
  }
  if (S_ISSOCK(status.st_mode)) return true;
  return Error::make(Code::kInvalidArgument,
                     "%.120s: is %s, which is not replaced; expected a path where nothing or an "
                     "unused socket is",
                     path.c_str(), kind_of(status.st_mode));
}

// The lock ends with the descriptor.
Result<FileDescriptor> lock_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string name = parent.empty() ? "." : parent;
  FileDescriptor directory(open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "%.120s: opening", name.c_str());
  for (int ms = 0; flock(directory.get(), LOCK_EX | LOCK_NB) != 0; ++ms) {
    if (errno != EWOULDBLOCK) return Error::from_errno(errno, "%.120s: locking", name.c_str());
    if (ms == kPatienceMs) {
      return Error::make(Code::kBusy, "%.120s: another process holds the lock of the directory",
                         path.c_str());
    }
    usleep(1000);
  }
  return directory;
}

// @errors kBusy: a process listens at it; kPermission: it cannot be seen whether one does
Status check_unused(const sockaddr_un& address) {
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe) return Error::from_errno(errno, "%.120s: socket", address.sun_path);
  if (connect(probe.get(), generic(address), sizeof address) != 0) {
    if (errno == ECONNREFUSED || errno == ENOENT) return {};
    // EAGAIN: its queue of connections is full. EPROTOTYPE: it is of another kind, and open.
    if (errno != EAGAIN && errno != EPROTOTYPE)
      return Error::from_errno(errno, "%.120s: connecting", address.sun_path);
  }
  return Error::make(Code::kBusy, "%.120s: another process listens there", address.sun_path);
}

}  // namespace

Status SocketFile::check(const std::string& path) {
  const Result<bool> found = is_socket_there(path);
  return found || found.error().code != Code::kInvalidArgument ? Status() : found.error();
}

Result<SocketFile> SocketFile::listen(int socket, const std::string& path, int backlog) {
  CACHALOT_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  CACHALOT_TRY_ASSIGN(const FileDescriptor lock, lock_directory(path));
  CACHALOT_TRY_ASSIGN(const bool is_there, is_socket_there(path));
  if (is_there) {
    CACHALOT_TRY(check_unused(address));
    if (unlink(path.c_str()) != 0 && errno != ENOENT)
      return Error::from_errno(errno, "%.120s: removing an unused socket", path.c_str());
  }
  if (bind(socket, generic(address), sizeof address) != 0)
    return Error::from_errno(errno, "%.120s: bind", path.c_str());
  SocketFile file;
  file.path_ = path;
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    file.device_ = status.st_dev;
    file.inode_ = status.st_ino;
  }
  // Still locked: a socket that is bound and does not listen looks unused.
  if (::listen(socket, backlog) != 0)
    return Error::from_errno(errno, "%.120s: listen", path.c_str());
  return file;
}

SocketFile& SocketFile::operator=(SocketFile&& other) noexcept {
  if (this == &other) return *this;
  remove();
  path_ = std::exchange(other.path_, {});
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

void SocketFile::remove() {
  struct stat status {};
  const bool is_own = !path_.empty() && lstat(path_.c_str(), &status) == 0 &&
                      status.st_dev == device_ && status.st_ino == inode_;
  if (is_own) (void)unlink(path_.c_str());
  path_.clear();
}

}  // namespace cachalot::os

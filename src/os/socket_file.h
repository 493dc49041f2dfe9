// The file of a Unix socket: never takes the place of another file or of a socket on which a process listens, and is
// removed at its end.
//
// bind() fails at any file, also at the socket of a process that was killed, so that file has to be removed first. To
// remove what is there without a look loses data. Between a look and bind() another process may come: processes of this
// library hold a lock on the directory meanwhile (flock), so that of two that start simultaneously one is refused. Other
// programs do not take the lock; one that listens within these microseconds may lose its file.
#pragma once

#include <cachalot/result.h>
#include <sys/types.h>

#include <string>
#include <utility>

namespace cachalot::os {

class SocketFile {
 public:
  SocketFile() = default;  // none
  // Binds and listens. @param socket  of AF_UNIX, not bound. @param path  not empty
  // @errors kInvalidArgument: the path is too long, or something that is no socket is there; kBusy: a process listens
  //         there, or another one takes the place now; kNotFound: no such directory; kPermission; kIo
  // @cost   a second at most, if another process holds the directory's lock
  static Result<SocketFile> listen(int socket, const std::string& path, int backlog);
  // OK: listen() would not be refused for what is at the path now, or only because a process listens there.
  // @errors kInvalidArgument: something that is no socket is there
  static Status check(const std::string& path);

  SocketFile(SocketFile&& other) noexcept
      : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}
  SocketFile& operator=(SocketFile&& other) noexcept;
  ~SocketFile() { remove(); }

 private:
  // If it is still the file that listen() has made.
  void remove();

  std::string path_;  // empty: none
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace cachalot::os

#include "ready_notice.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "os/file_descriptor.h"

namespace cachalot::apps {

Status tell_ready() {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr) return {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(name);
  if ((name[0] != '/' && name[0] != '@') || length >= sizeof address.sun_path) {
    return Error::make(Code::kInvalidArgument, "NOTIFY_SOCKET: \"%.120s\", expected /PATH or @NAME",
                       name);
  }
  std::memcpy(address.sun_path, name, length);
  if (name[0] == '@') address.sun_path[0] = '\0';
  constexpr char kReady[] = "READY=1";
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto address_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  if (!socket || ::sendto(socket.get(), kReady, sizeof kReady - 1, MSG_NOSIGNAL,
                          reinterpret_cast<const sockaddr*>(&address), address_bytes) < 0) {
    return Error::from_errno(errno, "NOTIFY_SOCKET %.120s", name);
  }
  return {};
}

}  // namespace cachalot::apps

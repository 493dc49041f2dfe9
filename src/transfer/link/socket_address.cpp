#include "transfer/link/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

namespace cachalot::transfer {
namespace {

Error not_an_address(std::string_view text) {
  return Error::make(
      Code::kInvalidArgument,
      "address \"%.*s\": expected tcp:IP:PORT, tcp:[IPv6]:PORT, unix:@NAME or unix:/PATH",
      static_cast<int>(std::min<std::size_t>(text.size(), 100)), text.data());
}

Result<SocketAddress> parse_unix(std::string_view whole, std::string_view path) {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  if (path.size() >= sizeof un.sun_path) {
    return Error::make(Code::kInvalidArgument,
                       "address \"%.*s…\": a name of %zu bytes; expected at most %zu", 60,
                       whole.data(), path.size(), sizeof un.sun_path - 1);
  }
  if (path.size() < 2 || (path[0] != '@' && path[0] != '/') ||
      path.find('\0') != std::string_view::npos) {
    return not_an_address(whole);
  }
  std::memcpy(un.sun_path, path.data(), path.size());
  if (path[0] == '@') un.sun_path[0] = '\0';
  SocketAddress address;
  std::memcpy(&address.storage, &un, sizeof un);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() +
                                         (path[0] == '/' ? 1 : 0));
  return address;
}

template <class Sockaddr>
SocketAddress as_address(const Sockaddr& from) {
  SocketAddress address;
  std::memcpy(&address.storage, &from, sizeof from);
  address.bytes = sizeof from;
  return address;
}

Status set_options(int fd, const SocketAddress& address) {
  const int on = 1;
  if (!address.is_unix() && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    return Error::from_errno(errno, "%s: TCP_NODELAY", address.text().c_str());
  }
  return {};
}

}  // namespace

Result<SocketAddress> SocketAddress::parse(std::string_view text) {
  const std::string_view whole = text;
  if (text.starts_with("unix:")) return parse_unix(whole, text.substr(5));
  if (!text.starts_with("tcp:")) return not_an_address(whole);
  text.remove_prefix(4);
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return not_an_address(whole);
  const std::string_view digits = text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return not_an_address(whole);
  std::string host(text.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    if (inet_pton(AF_INET6, host.c_str(), &in6.sin6_addr) != 1) return not_an_address(whole);
    return as_address(in6);
  }
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &in.sin_addr) != 1) return not_an_address(whole);
  return as_address(in);
}

std::string SocketAddress::text() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (family() == AF_UNIX) {
    sockaddr_un un{};
    std::memcpy(&un, &storage, sizeof un);
    const std::size_t length = bytes - offsetof(sockaddr_un, sun_path);
    if (length == 0) return "unix:";
    if (un.sun_path[0] == '\0') return "unix:@" + std::string(un.sun_path + 1, length - 1);
    return "unix:" + std::string(un.sun_path, strnlen(un.sun_path, length));
  }
  if (family() == AF_INET6) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, &storage, sizeof in6);
    inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
    return "tcp:[" + std::string(host) + "]:" + std::to_string(ntohs(in6.sin6_port));
  }
  sockaddr_in in{};
  std::memcpy(&in, &storage, sizeof in);
  inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
  return "tcp:" + std::string(host) + ":" + std::to_string(ntohs(in.sin_port));
}

Result<ListeningSocket> listen_at(const SocketAddress& address) {
  constexpr int kBacklog = 256;
  const std::string text = address.text();
  os::FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Error::from_errno(errno, "%s: socket", text.c_str());
  constexpr std::string_view kFile = "unix:/";
  if (text.starts_with(kFile)) {
    CACHALOT_TRY_ASSIGN(os::SocketFile file,
                        os::SocketFile::listen(fd.get(), text.substr(kFile.size() - 1), kBacklog));
    return ListeningSocket{std::move(fd), std::move(file)};
  }
  const int on = 1;
  // A restarted engine takes its port again at once.
  if (!address.is_unix()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), address.get(), address.bytes) != 0) {
    if (errno == EADDRINUSE) {
      return Error::make(Code::kBusy, "%s: another process listens there", text.c_str());
    }
    return Error::from_errno(errno, "%s: bind", text.c_str());
  }
  if (listen(fd.get(), kBacklog) != 0) return Error::from_errno(errno, "%s: listen", text.c_str());
  return ListeningSocket{std::move(fd), {}};
}

Result<os::FileDescriptor> begin_connect(const SocketAddress& address, const SocketAddress* from) {
  const std::string text = address.text();
  os::FileDescriptor fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Error::from_errno(errno, "%s: socket", text.c_str());
  CACHALOT_TRY(set_options(fd.get(), address));
  if (from != nullptr && bind(fd.get(), from->get(), from->bytes) != 0) {
    return Error::from_errno(errno, "%s: bind to %s", text.c_str(), from->text().c_str());
  }
  if (connect(fd.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS) {
    return Error::from_errno(errno, "%s: connect", text.c_str());
  }
  return fd;
}

Result<SocketAddress> local_address(int fd) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return Error::from_errno(errno, "getsockname");
  }
  return address;
}

Result<SocketAddress> remote_address(int fd) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return Error::from_errno(errno, "getpeername");
  }
  return address;
}

void stop_pacing_within_machine(int fd) {
  const Result<SocketAddress> local = local_address(fd), remote = remote_address(fd);
  if (!local || !remote || local->family() != remote->family()) return;
  const std::string here = local->text(), there = remote->text();
  if (here.substr(0, here.rfind(':')) != there.substr(0, there.rfind(':'))) return;
  std::array<char, 16> name{};  // TCP_CA_NAME_MAX
  socklen_t bytes = name.size();
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) != 0) return;
  if (std::string_view(name.data(), strnlen(name.data(), bytes)) != "bbr") return;
  constexpr std::string_view kReno = "reno";  // each Linux has it, and each process may use it
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
}

}  // namespace cachalot::transfer

#include "transfer/link/socket_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::transfer {
namespace {

// A process of another user could read what is transferred: this machine's sockets are for one user.
Status check_user(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    return Error::from_errno(errno, "SO_PEERCRED");
  if (peer.uid == geteuid() || peer.uid == 0) return {};
  return Error::make(Code::kPermission, "a process of user %u has connected; expected user %u",
                     peer.uid, geteuid());
}

}  // namespace

Result<std::unique_ptr<SocketTransport>> SocketTransport::open(
    const std::optional<os::SecretKey>& cluster_key) {
  os::FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return Error::from_errno(errno, "epoll_create1");
  std::unique_ptr<SocketTransport> transport(new SocketTransport(std::move(epoll)));
  if (cluster_key) {
    CACHALOT_TRY_ASSIGN(transport->tls_, TlsContext::make(*cluster_key));
  }
  return transport;
}

SocketTransport::~SocketTransport() = default;

void SocketTransport::start(LinkEvents& events, std::function<void(Link&)> accepted) {
  events_ = &events;
  accepted_ = std::move(accepted);
}

Status SocketTransport::watch(int fd, std::uint64_t key, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return Error::from_errno(errno, "epoll_ctl");
  return {};
}

Result<std::string> SocketTransport::listen(std::string_view text) {
  CACHALOT_TRY_ASSIGN(const SocketAddress wanted, SocketAddress::parse(text));
  const std::uint64_t key = next_key_++;
  CACHALOT_TRY_ASSIGN(Acceptor listener, Acceptor::open(wanted, epoll_.get(), key));
  const std::string address = listener.address().text();
  listeners_.emplace(key, std::move(listener));
  return address;
}

Result<Link*> SocketTransport::connect(std::string_view text) {
  const std::size_t from = text.find(" from ");
  CACHALOT_TRY_ASSIGN(const SocketAddress address, SocketAddress::parse(text.substr(0, from)));
  SocketAddress local;
  if (from != std::string_view::npos) {
    CACHALOT_TRY_ASSIGN(local,
                        SocketAddress::parse("tcp:" + std::string(text.substr(from + 6)) + ":0"));
  }
  CACHALOT_TRY_ASSIGN(os::FileDescriptor fd,
                      begin_connect(address, local.bytes == 0 ? nullptr : &local));
  CACHALOT_TRY_ASSIGN(SocketLink * link,
                      add(std::move(fd), address.is_unix(), true, std::string(text)));
  return static_cast<Link*>(link);
}

Result<SocketLink*> SocketTransport::add(os::FileDescriptor fd, bool is_unix, bool is_connecting,
                                         std::string peer_address) {
  const std::uint64_t key = next_key_++;
  CACHALOT_TRY(watch(fd.get(), key, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
  auto link =
      std::make_unique<SocketLink>(std::move(fd), is_unix, is_connecting, std::move(peer_address),
                                   *events_, is_unix ? nullptr : tls_.get());
  return (links_[key] = std::move(link)).get();
}

bool SocketTransport::accept_some(Acceptor& listener) {
  const bool is_unix = listener.address().is_unix();
  for (int left = kMostAccepted; left > 0; --left) {
    std::optional<os::FileDescriptor> fd = listener.accept(base::SteadyClock::read());
    if (!fd) return false;
    std::string peer = listener.address().text();
    if (is_unix) {
      if (const Status status = check_user(fd->get()); !status) {
        base::log(base::LogLevel::kWarn, "transfer", "%s: refused: %s", peer.c_str(),
                  status.error().message);
        continue;
      }
    } else {
      const int on = 1;
      setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (Result<SocketAddress> remote = remote_address(fd->get()); remote) peer = remote->text();
    }
    Result<SocketLink*> link = add(*std::move(fd), is_unix, false, std::move(peer));
    if (link) accepted_(**link);
  }
  return true;
}

bool SocketTransport::progress() {
  std::array<epoll_event, 64> events;
  bool is_more = false;
  for (auto& [key, listener] : listeners_) {
    if (listener.is_paused()) is_more |= accept_some(listener);
  }
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[static_cast<std::size_t>(i)].data.u64;
    const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
    if (const auto listener = listeners_.find(key); listener != listeners_.end()) {
      is_more |= accept_some(listener->second);
    } else if (const auto link = links_.find(key); link != links_.end()) {
      const bool failed = (what & (EPOLLERR | EPOLLHUP)) != 0;
      link->second->ready(failed || (what & (EPOLLIN | EPOLLRDHUP)) != 0,
                          failed || (what & EPOLLOUT) != 0);
    }
  }
  // A callback may add links; it never removes one.
  for (auto& [key, link] : links_) {
    if (link->is_runnable()) is_more |= link->progress();
  }
  std::erase_if(links_, [](const auto& entry) { return entry.second->is_closed(); });
  return is_more;
}

bool SocketTransport::arm() {
  for (const auto& [key, link] : links_) {
    if (link->is_runnable()) return false;
  }
  return true;
}

bool SocketTransport::is_paused() const {
  return std::ranges::any_of(listeners_,
                             [](const auto& entry) { return entry.second.is_paused(); });
}

std::uint64_t SocketTransport::staging_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, link] : links_) bytes += link->staging_bytes();
  return bytes;
}

}  // namespace cachalot::transfer

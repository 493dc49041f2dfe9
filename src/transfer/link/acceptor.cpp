#include "transfer/link/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kPauseNs = 50'000'000;
constexpr std::uint64_t kLogNs = 60'000'000'000;

}  // namespace

Result<Acceptor> Acceptor::open(const SocketAddress& address, int epoll, std::uint64_t key) {
  CACHALOT_TRY_ASSIGN(ListeningSocket listening, listen_at(address));
  const int fd = listening.fd.get();
  CACHALOT_TRY_ASSIGN(const SocketAddress bound, local_address(fd));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    return Error::from_errno(errno, "%s: epoll_ctl", bound.text().c_str());
  return Acceptor(std::move(listening), bound, epoll, key);
}

void Acceptor::watch(bool is_watched) {
  epoll_event event{};
  event.events = is_watched ? static_cast<std::uint32_t>(EPOLLIN) : 0u;
  event.data.u64 = key_;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, listening_.fd.get(), &event);
}

void Acceptor::pause(std::uint64_t now_ns, int error) {
  if (!is_paused()) watch(false);
  paused_until_ns_ = now_ns + kPauseNs;
  if (logged_ns_ != 0 && now_ns - logged_ns_ < kLogNs) return;
  logged_ns_ = now_ns;
  base::log(base::LogLevel::kWarn, "transfer", "%s: connections wait: accept: %s",
            address_.text().c_str(), std::strerror(error));
}

std::optional<os::FileDescriptor> Acceptor::accept(std::uint64_t now_ns) {
  if (now_ns < paused_until_ns_) return std::nullopt;
  for (;;) {
    os::FileDescriptor fd(
        accept4(listening_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = errno;
    const bool lacks_room =
        !fd && (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM);
    if (lacks_room) {
      pause(now_ns, error);
      return std::nullopt;
    }
    if (is_paused()) {
      paused_until_ns_ = 0;
      watch(true);
    }
    if (fd) return fd;
    // A connection that has ended in the queue is not the last one.
    if (error != ECONNABORTED && error != EINTR) return std::nullopt;
  }
}

}  // namespace cachalot::transfer

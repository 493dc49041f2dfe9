#include "testing/storage/hostile_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>

namespace cachalot::storage {
namespace {

constexpr int kTurnMs = 5;

}  // namespace

HostileServer::HostileServer(HostileAnswer answer)
    : answer_(std::move(answer)),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::jthread([this](const std::stop_token& ended) { serve(ended); });
}

HostileServer::~HostileServer() = default;

void HostileServer::serve(const std::stop_token& ended) {
  std::vector<Peer> peers;
  while (!ended.stop_requested()) {
    std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}};
    for (const Peer& peer : peers)
      waits.push_back(
          {peer.socket.get(), static_cast<short>(peer.waiting.empty() ? POLLIN : POLLOUT), 0});
    (void)::poll(waits.data(), waits.size(), kTurnMs);
    if (const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        fd >= 0) {
      peers.push_back({os::FileDescriptor(fd), {}});
    }
    std::erase_if(peers, [this](Peer& peer) { return !turn(peer); });
  }
}

// @return false: the other side has closed
bool HostileServer::turn(Peer& peer) const {
  char asked[4096];
  ssize_t got = 0;
  while ((got = ::recv(peer.socket.get(), asked, sizeof asked, 0)) > 0) {
    if (!peer.is_answered) peer.waiting = answer_.start;
    peer.is_answered = true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
  const auto now = std::chrono::steady_clock::now();
  if (peer.is_answered && peer.waiting.empty() && now >= peer.next_more) {
    peer.waiting = answer_.more;
    peer.next_more = now + answer_.pause;
  }
  if (peer.waiting.empty()) return true;
  const ssize_t sent =
      ::send(peer.socket.get(), peer.waiting.data(), peer.waiting.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  peer.waiting.erase(0, static_cast<std::size_t>(sent));
  return true;
}

}  // namespace cachalot::storage

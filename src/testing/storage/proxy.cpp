#include "testing/storage/proxy.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "base/rng.h"

namespace cachalot::storage {
namespace {

constexpr int kTurnMs = 5;  // how soon another mode is seen
constexpr std::size_t kDripBytes = 64;

sockaddr_in local(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

TestProxy::TestProxy(std::uint16_t target)
    : target_(target), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = local(0);
  socklen_t bytes = sizeof address;
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

TestProxy::~TestProxy() {
  ends_ = true;
  thread_.join();
}

void TestProxy::set(Mode mode) {
  mode_ = mode;
  // The turn that runs now may have read the mode before; the next one resets what is to be reset.
  const std::uint64_t turn = turns_;
  while (turns_ < turn + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Closes with RST instead of FIN.
void TestProxy::reset_all(std::vector<Link>& links) {
  for (Link& link : links) {
    const linger at_once{1, 0};
    (void)::setsockopt(link.client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)::setsockopt(link.server.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ++resets_;
  }
  links.clear();
}

// @param piece  the last bytes of `waiting`, at least one
void TestProxy::damage(std::vector<char>& waiting, std::size_t piece) {
  const auto begin = waiting.end() - static_cast<std::ptrdiff_t>(piece);
  const std::vector<char> copy(begin, waiting.end());
  switch (mode_.load()) {
    case Mode::kFlip:
      begin[static_cast<std::ptrdiff_t>(base::mix64(++flips_) % piece)] ^= 16;
      break;
    case Mode::kRepeat:
      waiting.insert(waiting.end(), copy.begin(), copy.end());
      break;
    default:
      break;
  }
}

// @return false: one side has closed
bool TestProxy::forward(os::FileDescriptor& from, os::FileDescriptor& to,
                        std::vector<char>& waiting, bool is_damaged) {
  char buffer[65536];
  if (waiting.size() < sizeof buffer) {
    const ssize_t got = ::recv(from.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) {
      waiting.insert(waiting.end(), buffer, buffer + got);
      if (is_damaged) damage(waiting, static_cast<std::size_t>(got));
      if (reset_after_ > 0) reset_after_ = reset_after_ > got ? reset_after_ - got : 0;
    }
  }
  if (waiting.empty() || reset_after_ == 0) return true;
  const std::size_t most = mode_ == Mode::kDrip ? kDripBytes : waiting.size();
  const ssize_t sent =
      ::send(to.get(), waiting.data(), std::min(most, waiting.size()), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  waiting.erase(waiting.begin(), waiting.begin() + sent);
  return true;
}

// Answers a request that begins with PUT, and drops the rest of it. @return false: the client has closed
bool TestProxy::refuse(Link& link) {
  constexpr std::string_view kPut = "PUT ";
  constexpr std::string_view kAnswer =
      "HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  char buffer[65536];
  if (!link.is_refused) {
    const ssize_t seen = ::recv(link.client.get(), buffer, kPut.size(), MSG_DONTWAIT | MSG_PEEK);
    if (!link.to_server.empty() || seen < 0 ||
        std::string_view(buffer, static_cast<std::size_t>(seen)) != kPut) {
      return true;
    }
    link.is_refused = true;
    (void)::send(link.client.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
  }
  return ::recv(link.client.get(), buffer, sizeof buffer, MSG_DONTWAIT) != 0;
}

void TestProxy::serve() {
  std::vector<Link> links;
  while (!ends_) {
    ++turns_;
    const Mode mode = mode_;
    if (mode == Mode::kReset || reset_after_ == 0) {
      reset_all(links);
      reset_after_ = -1;
    }
    std::vector<pollfd> waits{{listener_.get(), POLLIN, 0}};
    bool has_waiting = false;
    const bool passes = mode != Mode::kHold && mode != Mode::kReset;
    for (const Link& link : links) {
      if (!passes) continue;
      if (mode != Mode::kDrip) {
        waits.push_back({link.client.get(), POLLIN, 0});
        waits.push_back({link.server.get(), POLLIN, 0});
      }
      has_waiting = has_waiting || !link.to_client.empty() || !link.to_server.empty();
    }
    (void)::poll(waits.data(), waits.size(), has_waiting ? 1 : kTurnMs);
    if ((waits[0].revents & POLLIN) != 0) {
      Link link{os::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)),
                os::FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                {},
                {},
                false};
      const sockaddr_in address = local(target_);
      if (::connect(link.server.get(), reinterpret_cast<const sockaddr*>(&address),
                    sizeof address) == 0) {
        links.push_back(std::move(link));
      }
    }
    if (!passes) continue;
    std::erase_if(links, [&](Link& link) {
      if (mode == Mode::kFull || link.is_refused) {
        if (!refuse(link)) return true;
        if (link.is_refused) return false;
      }
      return !forward(link.client, link.server, link.to_server, false) ||
             !forward(link.server, link.client, link.to_client, true);
    });
  }
}

}  // namespace cachalot::storage

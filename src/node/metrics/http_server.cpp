#include "node/metrics/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "os/file_descriptor.h"

namespace cachalot::node {
namespace {

constexpr std::size_t kMostConnections = 64;
constexpr std::size_t kMostHeadBytes = 8192;
constexpr int kBacklog = 128;
constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kRequestNs = 2 * kSecondNs;
constexpr std::uint64_t kAnswerNs = 10 * kSecondNs;
constexpr std::uint64_t kFarewellNs = kSecondNs;    // for a client that still sends
constexpr std::uint64_t kPauseNs = kSecondNs / 10;  // without a descriptor for the next connection

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "HTTP Version Not Supported";
  }
}

std::string text_of(const HttpAnswer& answer, bool is_head) {
  std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " " + reason_of(answer.status) +
                     "\r\nContent-Type: " + answer.type +
                     "\r\nContent-Length: " + std::to_string(answer.body.size()) +
                     "\r\nConnection: close\r\n";
  if (answer.status == 405) text += "Allow: GET, HEAD\r\n";
  text += "\r\n";
  return is_head ? text : text + answer.body;
}

HttpAnswer refusal(int status) {
  return {status, "text/plain; charset=utf-8",
          std::string(reason_of(status)) + ": expected GET or HEAD, a head of at most " +
              std::to_string(kMostHeadBytes) + " bytes and no body\n"};
}

// A thread started while this exists gets no signal: those are for the keeper, whose nap they end.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

// @return none: errno says why
os::FileDescriptor listen_at(const addrinfo& address) {
  os::FileDescriptor listener(
      socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
  if (!listener) return {};
  const int yes = 1, no = 0;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.ai_family == AF_INET6)
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  const bool is_listening = bind(listener.get(), address.ai_addr, address.ai_addrlen) == 0 &&
                            ::listen(listener.get(), kBacklog) == 0;
  return is_listening ? std::move(listener) : os::FileDescriptor();
}

// The first of the host's addresses that is one of this machine.
Result<os::FileDescriptor> listen_at(const std::string& host, const ListenAddress& address) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string text = address.text(), port = std::to_string(address.port);
  if (getaddrinfo(host.c_str(), port.c_str(), &wanted, &found) != 0)
    return Error::make(Code::kInvalidArgument, "%.100s: no such host", text.c_str());
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  int first_error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    os::FileDescriptor listener = listen_at(*each);
    if (listener) return listener;
    if (first_error == 0) first_error = errno;
  }
  return Error::from_errno(first_error, "%.100s: listening", text.c_str());
}

std::uint16_t port_of(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

// One client: sends a head, gets an answer, and closes the connection.
class Connection {
 public:
  explicit Connection(os::FileDescriptor socket)
      : socket_(std::move(socket)), deadline_ns_(base::SteadyClock::read() + kRequestNs) {}

  int descriptor() const { return socket_.get(); }
  short events() const { return stage_ == Stage::kAnswer ? POLLOUT : POLLIN; }
  std::uint64_t deadline_ns() const { return deadline_ns_; }

  // Does what is possible without waiting. @return false: the connection has ended
  bool advance(const HttpServer::Handler& handler) {
    if (stage_ == Stage::kRequest && !read_request(handler)) return false;
    if (stage_ == Stage::kAnswer && !write_answer()) return false;
    return stage_ != Stage::kFarewell || drop_input();
  }

 private:
  enum class Stage { kRequest, kAnswer, kFarewell };

  void enter(Stage stage, std::uint64_t time_ns) {
    stage_ = stage;
    deadline_ns_ = base::SteadyClock::read() + time_ns;
  }

  bool read_request(const HttpServer::Handler& handler) {
    std::array<char, kMostHeadBytes> bytes;
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size() - text_.size(), 0);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    text_.append(bytes.data(), static_cast<std::size_t>(got));
    const std::optional<std::size_t> end = find_end_of_head(text_);
    if (end) {
      const ParsedRequest parsed = parse_request(std::string_view(text_).substr(0, *end));
      const HttpAnswer answer =
          parsed.status == 200 ? handler(parsed.request) : refusal(parsed.status);
      text_ = text_of(answer, parsed.request.is_head);
    } else if (text_.size() == kMostHeadBytes) {
      text_ = text_of(refusal(431), false);
    } else {
      return true;
    }
    enter(Stage::kAnswer, kAnswerNs);
    return true;
  }

  bool write_answer() {
    const ssize_t sent =
        send(socket_.get(), text_.data() + sent_, text_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    sent_ += static_cast<std::size_t>(sent);
    if (sent_ < text_.size()) return true;
    // A socket that is closed before all its input was read is reset, and the answer may be lost.
    shutdown(socket_.get(), SHUT_WR);
    text_ = {};
    enter(Stage::kFarewell, kFarewellNs);
    return true;
  }

  bool drop_input() {
    std::array<char, kMostHeadBytes> bytes;
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }

  os::FileDescriptor socket_;
  Stage stage_ = Stage::kRequest;
  std::uint64_t deadline_ns_;
  std::string text_;      // of the request, then of the answer
  std::size_t sent_ = 0;  // of the answer
};

}  // namespace

class HttpServer::Loop {
 public:
  Loop(os::FileDescriptor listener, os::FileDescriptor wake, Handler handler)
      : listener_(std::move(listener)), wake_(std::move(wake)), handler_(std::move(handler)) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  void run() {
    while (true) {
      const std::vector<pollfd> ready = wait();
      if (ready[0].revents != 0) return;
      for (std::size_t i = connections_.size(); i-- > 0;) {
        if (ready[2 + i].revents != 0) serve(i);
      }
      if (ready[1].revents != 0) accept_all();
      const std::uint64_t now_ns = base::SteadyClock::read();
      std::erase_if(connections_, [now_ns](const Connection& connection) {
        return connection.deadline_ns() <= now_ns;
      });
    }
  }

  // Until a client, the end, or a deadline comes.
  std::vector<pollfd> wait() {
    const std::uint64_t now_ns = base::SteadyClock::read();
    const bool is_paused = now_ns < accept_ns_;
    std::uint64_t until_ns = is_paused ? accept_ns_ : now_ns + kAnswerNs;
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0},
                                  {is_paused ? -1 : listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({connection.descriptor(), connection.events(), 0});
      until_ns = std::min(until_ns, connection.deadline_ns());
    }
    constexpr std::uint64_t kMillisecondNs = 1'000'000;
    const std::uint64_t wait_ns = std::max(until_ns, now_ns) - now_ns;
    if (poll(polled.data(), polled.size(), static_cast<int>(wait_ns / kMillisecondNs + 1)) <= 0) {
      for (pollfd& each : polled) each.revents = 0;
    }
    return polled;
  }

  void serve(std::size_t i) {
    bool is_open = false;
    try {
      is_open = connections_[i].advance(handler_);
    } catch (const std::bad_alloc&) {  // this client gets no answer; a later one may
    }
    if (!is_open) connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void accept_all() {
    for (int i = 0; i < kBacklog; ++i) {
      os::FileDescriptor socket(
          accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        if (is_short) accept_ns_ = base::SteadyClock::read() + kPauseNs;
        return;
      }
      const int yes = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      if (connections_.size() == kMostConnections) connections_.erase(connections_.begin());
      connections_.emplace_back(std::move(socket));
      serve(connections_.size() - 1);  // its request may be here already
    }
  }

  const os::FileDescriptor listener_, wake_;
  const Handler handler_;
  std::vector<Connection> connections_;  // the oldest first
  std::uint64_t accept_ns_ = 0;          // no connection is accepted earlier
  std::thread thread_;
};

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const ListenAddress& address,
                                                       Handler handler) {
  // All addresses: IPv6 and IPv4 by one socket, or IPv4 where the machine has no IPv6.
  Result<os::FileDescriptor> listener =
      listen_at(address.host.empty() ? "::" : address.host, address);
  if (!listener && address.host.empty() && listener.error().os_error != EADDRINUSE)
    listener = listen_at("0.0.0.0", address);
  if (!listener) return listener.error();
  os::FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return Error::from_errno(errno, "%.100s: listening", address.text().c_str());
  std::unique_ptr<HttpServer> server(new HttpServer);
  server->port_ = port_of(listener->get());
  server->loop_ = std::make_unique<Loop>(*std::move(listener), std::move(wake), std::move(handler));
  return server;
}

}  // namespace cachalot::node

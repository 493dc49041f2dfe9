#include "transfer/ucx/ucx_door.h"

#include <netinet/in.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint32_t kMagic = 0x44465243u;  // "CRFD"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kMostCallers = 256;
constexpr std::uint64_t kCallerNs = 5'000'000'000;

Status watch(int epoll, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return Error::from_errno(errno, "ucx: epoll_ctl");
}

SocketAddress with_port(SocketAddress address, std::uint16_t port) {
  // The port is at the same place for both families.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  const std::uint16_t number = htons(port);
  std::memcpy(reinterpret_cast<std::byte*>(&address.storage) + offsetof(sockaddr_in, sin_port),
              &number, sizeof number);
  return address;
}

}  // namespace

Result<UcxDoor> UcxDoor::open(const SocketAddress& address, int epoll) {
  CACHALOT_TRY_ASSIGN(Acceptor acceptor, Acceptor::open(address, epoll, 0));
  return UcxDoor(std::move(acceptor), epoll);
}

void UcxDoor::progress(std::uint64_t now_ns, const std::function<Result<std::uint16_t>()>& expect) {
  accept_all(now_ns);
  std::erase_if(callers_,
                [&](Caller& caller) { return serve(caller, expect) || now_ns > caller.until_ns; });
}

void UcxDoor::accept_all(std::uint64_t now_ns) {
  for (int left = kMostAccepted; left > 0; --left) {
    std::optional<os::FileDescriptor> fd = acceptor_.accept(now_ns);
    if (!fd) return;
    if (callers_.size() == kMostCallers) callers_.pop_front();
    if (!watch(epoll_, fd->get(), EPOLLIN | EPOLLRDHUP | EPOLLET)) continue;
    callers_.push_back({*std::move(fd), now_ns + kCallerNs});
  }
}

bool UcxDoor::serve(Caller& caller, const std::function<Result<std::uint16_t>()>& expect) {
  while (caller.count < caller.bytes.size()) {
    const ssize_t count = recv(caller.fd.get(), caller.bytes.data() + caller.count,
                               caller.bytes.size() - caller.count, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno != EAGAIN;
    if (count == 0) return true;
    caller.count += static_cast<std::size_t>(count);
  }
  DoorCall call{};
  std::memcpy(&call, caller.bytes.data(), sizeof call);
  if (call.magic != kMagic) return true;
  DoorAnswer answer{kMagic, kVersion, 0, 0};
  // A caller of another version learns the one of this engine, and no port.
  if (call.version == kVersion) {
    const Result<std::uint16_t> port = expect();
    if (!port) {
      base::log(base::LogLevel::kWarn, "transfer", "%s", port.error().message);
      return true;
    }
    answer.port = *port;
  }
  // The first bytes of a connection: the socket takes them at once.
  static_cast<void>(send(caller.fd.get(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT));
  return true;
}

Result<UcxDoorCall> UcxDoorCall::begin(const SocketAddress& address, int epoll) {
  CACHALOT_TRY_ASSIGN(os::FileDescriptor fd, begin_connect(address));
  CACHALOT_TRY(watch(epoll, fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
  return UcxDoorCall(std::move(fd), address);
}

std::optional<Result<SocketAddress>> UcxDoorCall::progress() {
  if (!is_sent_) {
    const DoorCall call{kMagic, kVersion, {}};
    const ssize_t count = send(fd_.get(), &call, sizeof call, MSG_NOSIGNAL);
    if (count < 0) {
      // ENOTCONN: still connecting.
      if (errno == EAGAIN || errno == EINTR || errno == ENOTCONN) return {};
      return Error::from_errno(errno, "connect");
    }
    is_sent_ = true;
  }
  while (count_ < bytes_.size()) {
    const ssize_t count =
        recv(fd_.get(), bytes_.data() + count_, bytes_.size() - count_, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return {};
    if (count < 0) return Error::from_errno(errno, "connect");
    if (count == 0)
      return Error::make(Code::kIo, "the peer has closed the connection without an answer");
    count_ += static_cast<std::size_t>(count);
  }
  DoorAnswer answer{};
  std::memcpy(&answer, bytes_.data(), sizeof answer);
  if (answer.magic != kMagic) return Error::make(Code::kBadInput, "not a Cachalot peer over UCX");
  if (answer.version != kVersion || answer.port == 0) {
    return Error::make(Code::kVersionMismatch,
                       "the peer speaks version %u of links over UCX, this engine version %u",
                       answer.version, kVersion);
  }
  return with_port(address_, answer.port);
}

}  // namespace cachalot::transfer

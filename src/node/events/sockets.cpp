#include "node/events/sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <future>
#include <initializer_list>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "os/file_descriptor.h"
#include "os/socket_file.h"

namespace cachalot::events {
namespace {

constexpr std::string_view kConnect = "connect:", kTcp = "tcp://", kIpc = "ipc://";
constexpr int kBacklog = 100;            // connections that wait, as ZeroMQ has it
constexpr int kLiveMessages = 100'000;   // queued for one subscriber
constexpr int kReplayMessages = 8;       // likewise: the feed has the others
constexpr int kRequests = 16;            // that one subscriber may send ahead
constexpr int kSocketBytes = 512 << 10;  // of a connection, in the kernel
constexpr int kMostFrameBytes = 1024;    // of what subscribers send
constexpr int kHandshakeMs = 2000;
constexpr int kLingerMs = 500;
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};

std::string big_endian(std::uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<char>(value >> shift & 0xff));
  return bytes;
}

// ZeroMQ takes the low 16 bits of any number.
bool is_port(std::string_view text) {
  if (text == "*") return true;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value <= 0xffff;
}

Status check_form(const char* name, std::string_view endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  const bool is_tcp =
      endpoint.starts_with(kTcp) && colon > kTcp.size() && is_port(endpoint.substr(colon + 1));
  const bool is_ipc = endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size();
  if (is_tcp || is_ipc) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: \"%.120s\", expected tcp://ADDRESS:PORT, tcp://*:PORT or ipc://PATH",
                     name, std::string(endpoint).c_str());
}

// The path of an endpoint that has a file; nothing: "ipc://*", for which ZeroMQ makes a directory, an abstract name, or
// TCP.
std::optional<std::string> path_of(std::string_view endpoint) {
  if (!endpoint.starts_with(kIpc)) return {};
  const std::string_view path = endpoint.substr(kIpc.size());
  if (path.starts_with('*') || path.starts_with('@')) return {};
  return std::string(path);
}

// The error of a socket's file, which names it.
Error of_flag(const char* name, const Error& error) {
  // A folder that does not exist is a slip of the pen.
  const Code code = error.code == Code::kNotFound ? Code::kInvalidArgument : error.code;
  Error made = Error::make(code, "%s: %s", name, error.message);
  made.os_error = error.os_error;
  return made;
}

// An endpoint that will be bound.
Status check_bound(const char* name, std::string_view endpoint) {
  CACHALOT_TRY(check_form(name, endpoint));
  const std::optional<std::string> path = path_of(endpoint);
  if (!path) return {};
  const Status checked = os::SocketFile::check(*path);
  return checked ? Status() : of_flag(name, checked.error());
}

Error failed(const char* name, const std::string& endpoint, int error) {
  const Code code = error == EADDRINUSE ? Code::kBusy
                    : error == EACCES   ? Code::kPermission
                                        : Code::kInvalidArgument;
  const char* const hint = error == EINVAL ? "not an address and a port" : zmq_strerror(error);
  return Error::make(code, "%s: %.200s: %s", name, endpoint.c_str(), hint);
}

// ZeroMQ ends the process when the system refuses it a thread or a descriptor: asks for them first. The threads'
// stacks stay with the process for ZeroMQ's. Throws std::system_error as std::thread does.
Status check_room() {
  constexpr std::size_t kDescriptors =
      24;  // two sockets, two monitors, two threads: 16, and some to spare
  std::array<os::FileDescriptor, kDescriptors> descriptors;
  for (os::FileDescriptor& each : descriptors) {
    each = os::FileDescriptor(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!each) {
      return Error::make(Code::kNoSpace, "--kv-events: needs %zu file descriptors: %s",
                         kDescriptors, std::generic_category().message(errno).c_str());
    }
  }
  std::array<std::jthread, 2> threads;
  std::promise<void> all_run;  // ends before the threads, whatever happens
  const std::shared_future<void> end = all_run.get_future();
  for (std::jthread& each : threads) each = std::jthread([end] { end.wait(); });
  return {};
}

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Socket = std::unique_ptr<void, CloseSocket>;

void set(const Socket& socket, int option, int value) {
  zmq_setsockopt(socket.get(), option, &value, sizeof value);
}

// A message that ZeroMQ holds. Its thread deletes this when all subscribers have it or are gone.
struct Held {
  SharedMessage message;
  std::shared_ptr<Unread> unread;
};

void release(void*, void* hint) {
  const std::unique_ptr<Held> held(static_cast<Held*>(hint));
  held->unread->messages.fetch_sub(1, std::memory_order_relaxed);
  held->unread->bytes.fetch_sub(held->message->payload.size(), std::memory_order_relaxed);
}

// A frame with a message's payload, without a copy.
class PayloadFrame {
 public:
  PayloadFrame(const SharedMessage& message, const std::shared_ptr<Unread>& unread) {
    const std::string& payload = message->payload;
    auto held = std::make_unique<Held>(Held{message, unread});
    // ZeroMQ does not write to it.
    if (zmq_msg_init_data(&frame_, const_cast<char*>(payload.data()), payload.size(), release,
                          held.get()) != 0) {
      throw std::bad_alloc();
    }
    static_cast<void>(held.release());
    unread->messages.fetch_add(1, std::memory_order_relaxed);
    unread->bytes.fetch_add(payload.size(), std::memory_order_relaxed);
  }
  ~PayloadFrame() { zmq_msg_close(&frame_); }
  PayloadFrame(const PayloadFrame&) = delete;
  PayloadFrame& operator=(const PayloadFrame&) = delete;

  int send(void* socket) { return zmq_msg_send(&frame_, socket, ZMQ_DONTWAIT); }

 private:
  zmq_msg_t frame_;
};

// @return false: nothing was sent; errno says why
bool send(const Socket& socket, std::initializer_list<std::string_view> head,
          const SharedMessage& message, const std::shared_ptr<Unread>& unread) {
  const auto is_sent = [](const auto& attempt) {
    int sent = -1;
    do {
      sent = attempt();
    } while (sent < 0 && errno == EINTR);
    return sent >= 0;
  };
  PayloadFrame payload(message, unread);  // before the first frame: it may lack memory
  for (const std::string_view frame : head) {
    if (!is_sent([&] {
          return zmq_send(socket.get(), frame.data(), frame.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT);
        })) {
      return false;
    }
  }
  return is_sent([&] { return payload.send(socket.get()); });
}

}  // namespace

struct Sockets::Zmq {
  struct EndContext {
    void operator()(void* ended) const { zmq_ctx_term(ended); }
  };
  std::unique_ptr<void, EndContext> context{zmq_ctx_new()};
  os::SocketFile live_file, replay_file;
  Socket live, replay;  // closed before the context ends
  std::optional<Peers> live_peers, replay_peers;

  Result<Socket> make(int kind, int messages, const std::string& endpoint) const {
    Socket socket(zmq_socket(context.get(), kind));
    if (socket == nullptr) {
      return Error::make(Code::kNoSpace, "events: no socket can be made: %s", zmq_strerror(errno));
    }
    set(socket, ZMQ_SNDHWM, messages);
    set(socket, ZMQ_RCVHWM, kRequests);
    set(socket, ZMQ_SNDBUF, kSocketBytes);
    set(socket, ZMQ_HANDSHAKE_IVL, kHandshakeMs);
    const std::int64_t most_bytes = kMostFrameBytes;
    zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &most_bytes, sizeof most_bytes);
    set(socket, ZMQ_LINGER, kLingerMs);
    set(socket, ZMQ_IPV6, endpoint.find('[') != std::string::npos);
    return socket;
  }
  // Before the socket has peers.
  Status watch(const Socket& socket, const char* name, PeerLimits limits,
               std::optional<Peers>& peers) const {
    peers.emplace(context.get(), socket.get(), name, limits);
    if (peers->is_watching()) return {};
    return Error::make(Code::kNoSpace, "%s: its connections cannot be watched: %s", name,
                       zmq_strerror(errno));
  }
};

Status Endpoints::check() const {
  const std::string_view address = live;
  const bool connects = address.starts_with(kConnect);
  CACHALOT_TRY(connects ? check_form("--kv-events", address.substr(kConnect.size()))
                        : check_bound("--kv-events", address));
  return replay.empty() ? Status() : check_bound("--kv-events-replay", replay);
}

Sockets::Sockets(std::unique_ptr<Zmq> zmq) : zmq_(std::move(zmq)) {}
Sockets::Sockets(Sockets&&) noexcept = default;
Sockets& Sockets::operator=(Sockets&&) noexcept = default;
Sockets::~Sockets() = default;

namespace {

// ZeroMQ binds to a path after it has removed whatever is there, so it gets a socket that listens already.
Status bind_to_path(const Socket& socket, const char* name, const std::string& endpoint,
                    const std::string& path, os::SocketFile& file) {
  os::FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Error::from_errno(errno, "%s: %.120s: socket", name, endpoint.c_str());
  Result<os::SocketFile> made = os::SocketFile::listen(fd.get(), path, kBacklog);
  if (!made) return of_flag(name, made.error());
  set(socket, ZMQ_USE_FD, fd.get());
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return failed(name, endpoint, errno);
  static_cast<void>(fd.release());  // ZeroMQ closes it
  file = *std::move(made);
  return {};
}

// @return the endpoint as bound
Result<std::string> bind_to(const Socket& socket, const char* name, const std::string& endpoint,
                            os::SocketFile& file) {
  if (const std::optional<std::string> path = path_of(endpoint)) {
    CACHALOT_TRY(bind_to_path(socket, name, endpoint, *path, file));
    return endpoint;
  }
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return failed(name, endpoint, errno);
  std::array<char, 1024> bound{};
  std::size_t size = bound.size();
  if (zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) return endpoint;
  return std::string(bound.data());
}

}  // namespace

Result<Sockets> Sockets::open(const Endpoints& endpoints, PeerLimits limits) {
  CACHALOT_TRY(endpoints.check());
  CACHALOT_TRY(check_room());
  Sockets opened(std::make_unique<Zmq>());
  Zmq& zmq = *opened.zmq_;
  opened.endpoints_ = endpoints;
  CACHALOT_TRY_ASSIGN(zmq.live, zmq.make(ZMQ_PUB, kLiveMessages, endpoints.live));
  CACHALOT_TRY(zmq.watch(zmq.live, "--kv-events", limits, zmq.live_peers));
  if (endpoints.live.starts_with(kConnect)) {
    const std::string to = endpoints.live.substr(kConnect.size());
    if (zmq_connect(zmq.live.get(), to.c_str()) != 0) return failed("--kv-events", to, errno);
  } else {
    CACHALOT_TRY_ASSIGN(opened.endpoints_.live,
                        bind_to(zmq.live, "--kv-events", endpoints.live, zmq.live_file));
  }
  if (endpoints.replay.empty()) return opened;
  CACHALOT_TRY_ASSIGN(zmq.replay, zmq.make(ZMQ_ROUTER, kReplayMessages, endpoints.replay));
  set(zmq.replay, ZMQ_ROUTER_MANDATORY, 1);
  CACHALOT_TRY(zmq.watch(zmq.replay, "--kv-events-replay", limits, zmq.replay_peers));
  CACHALOT_TRY_ASSIGN(opened.endpoints_.replay,
                      bind_to(zmq.replay, "--kv-events-replay", endpoints.replay, zmq.replay_file));
  return opened;
}

void Sockets::publish(const SharedMessage& message) {
  static_cast<void>(send(zmq_->live, {message->topic, big_endian(message->sequence)}, message,
                         zmq_->live_peers->unread()));
}

bool Sockets::wait(std::uint32_t timeout_ms) {
  if (zmq_->replay == nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
    return false;
  }
  zmq_pollitem_t item{zmq_->replay.get(), 0, ZMQ_POLLIN, 0};
  return zmq_poll(&item, 1, static_cast<long>(timeout_ms)) > 0;
}

// Frames: identity, empty, number of 8 bytes.
std::optional<Sockets::Request> Sockets::take_request() {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    const int got = zmq_msg_recv(&frame, zmq_->replay.get(), ZMQ_DONTWAIT);
    if (got >= 0) {
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
    }
    more = got >= 0 && zmq_msg_more(&frame) != 0;
    zmq_msg_close(&frame);
  }
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return {};
  Request request{std::move(frames[0])};
  for (const char byte : frames[2])
    request.first = request.first << 8 | static_cast<unsigned char>(byte);
  return request;
}

Sockets::Sent Sockets::answer(const std::string& identity, const SharedMessage& message) {
  const bool is_sent =
      send(zmq_->replay, {identity, "", message->topic, big_endian(message->sequence)}, message,
           zmq_->replay_peers->unread());
  if (is_sent) return Sent::kYes;
  return errno == EAGAIN ? Sent::kFull : Sent::kGone;
}

SharedMessage Sockets::end_of_answer() {
  static const auto mark = std::make_shared<const Message>(Message{"", kEndOfReplay, ""});
  return mark;
}

void Sockets::tend() {
  zmq_->live_peers->tend();
  if (zmq_->replay_peers) zmq_->replay_peers->tend();
}

}  // namespace cachalot::events

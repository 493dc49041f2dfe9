#include "node/events/sockets.h"

#include <zmq.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <initializer_list>
#include <string_view>
#include <thread>
#include <vector>

namespace cachalot::events {
namespace {

constexpr std::string_view kConnect = "connect:";
constexpr int kLiveMessages = 100'000;  // queued for one subscriber
constexpr int kReplayMessages = 64;
constexpr int kReplayTimeoutMs = 1000;
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
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  const std::size_t colon = endpoint.rfind(':');
  const bool is_tcp =
      endpoint.starts_with(kTcp) && colon > kTcp.size() && is_port(endpoint.substr(colon + 1));
  const bool is_ipc = endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size();
  if (is_tcp || is_ipc) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: \"%.120s\", expected tcp://ADDRESS:PORT, tcp://*:PORT or ipc://PATH",
                     name, std::string(endpoint).c_str());
}

Error failed(const char* name, const std::string& endpoint, int error) {
  const Code code = error == EADDRINUSE ? Code::kBusy
                    : error == EACCES   ? Code::kPermission
                                        : Code::kInvalidArgument;
  const char* const hint = error == EINVAL ? "not an address and a port" : zmq_strerror(error);
  return Error::make(code, "%s: %.200s: %s", name, endpoint.c_str(), hint);
}

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Socket = std::unique_ptr<void, CloseSocket>;

void set(const Socket& socket, int option, int value) {
  zmq_setsockopt(socket.get(), option, &value, sizeof value);
}

bool send(const Socket& socket, std::initializer_list<std::string_view> frames) {
  std::size_t left = frames.size();
  for (const std::string_view frame : frames) {
    const int flags = --left == 0 ? 0 : ZMQ_SNDMORE;
    int sent = -1;
    do {
      sent = zmq_send(socket.get(), frame.data(), frame.size(), flags);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return false;
  }
  return true;
}

}  // namespace

struct Sockets::Zmq {
  struct EndContext {
    void operator()(void* context) const { zmq_ctx_term(context); }
  };
  std::unique_ptr<void, EndContext> context{zmq_ctx_new()};
  Socket live, replay;  // closed before the context ends

  Result<Socket> make(int kind, int messages, const std::string& endpoint) const {
    Socket socket(zmq_socket(context.get(), kind));
    if (socket == nullptr) {
      return Error::make(Code::kNoSpace, "events: no socket can be made: %s", zmq_strerror(errno));
    }
    set(socket, ZMQ_SNDHWM, messages);
    set(socket, ZMQ_LINGER, kLingerMs);
    set(socket, ZMQ_IPV6, endpoint.find('[') != std::string::npos);
    return socket;
  }
};

Status Endpoints::check() const {
  const std::string_view address = live;
  const bool connects = address.starts_with(kConnect);
  CACHALOT_TRY(check_form("--kv-events", connects ? address.substr(kConnect.size()) : address));
  return replay.empty() ? Status() : check_form("--kv-events-replay", replay);
}

Sockets::Sockets(std::unique_ptr<Zmq> zmq) : zmq_(std::move(zmq)) {}
Sockets::Sockets(Sockets&&) noexcept = default;
Sockets& Sockets::operator=(Sockets&&) noexcept = default;
Sockets::~Sockets() = default;

namespace {

// @return the endpoint as bound
Result<std::string> bind_to(const Socket& socket, const char* name, const std::string& endpoint) {
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return failed(name, endpoint, errno);
  std::array<char, 1024> bound{};
  std::size_t size = bound.size();
  if (zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) return endpoint;
  return std::string(bound.data());
}

}  // namespace

Result<Sockets> Sockets::open(const Endpoints& endpoints) {
  CACHALOT_TRY(endpoints.check());
  Sockets opened(std::make_unique<Zmq>());
  Zmq& zmq = *opened.zmq_;
  opened.endpoints_ = endpoints;
  CACHALOT_TRY_ASSIGN(zmq.live, zmq.make(ZMQ_PUB, kLiveMessages, endpoints.live));
  if (endpoints.live.starts_with(kConnect)) {
    const std::string to = endpoints.live.substr(kConnect.size());
    if (zmq_connect(zmq.live.get(), to.c_str()) != 0) return failed("--kv-events", to, errno);
  } else {
    CACHALOT_TRY_ASSIGN(opened.endpoints_.live, bind_to(zmq.live, "--kv-events", endpoints.live));
  }
  if (endpoints.replay.empty()) return opened;
  CACHALOT_TRY_ASSIGN(zmq.replay, zmq.make(ZMQ_ROUTER, kReplayMessages, endpoints.replay));
  set(zmq.replay, ZMQ_ROUTER_MANDATORY, 1);
  set(zmq.replay, ZMQ_SNDTIMEO, kReplayTimeoutMs);
  CACHALOT_TRY_ASSIGN(opened.endpoints_.replay,
                      bind_to(zmq.replay, "--kv-events-replay", endpoints.replay));
  return opened;
}

void Sockets::publish(const Message& message) {
  static_cast<void>(
      send(zmq_->live, {message.topic, big_endian(message.sequence), message.payload}));
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

bool Sockets::answer(const Request& to, const Message& message) {
  return send(zmq_->replay,
              {to.identity, "", message.topic, big_endian(message.sequence), message.payload});
}

bool Sockets::end_answer(const Request& to) {
  return send(zmq_->replay, {to.identity, "", "", big_endian(kEndOfReplay), ""});
}

}  // namespace cachalot::events

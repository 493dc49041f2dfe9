#include "transfer/ucx/ucx_transport.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::transfer {
namespace {

constexpr int kMostProgress = 64;  // calls of ucp_worker_progress() in one progress()
constexpr std::uint64_t kTickNs = 10'000'000;
constexpr long kNapNs = 20'000;
constexpr std::uint64_t kMostEndNs = 1'000'000'000;  // what the destructor waits for
// Segments and packed slices fit into one message of UCX's TCP transport: each goes out with one system call, and is
// handed over where it was received.
constexpr const char* kTcpSendBytes = "72k";
constexpr const char* kTcpReceiveBytes = "272k";

Result<SocketAddress> parse(std::string_view text) {
  if (!text.starts_with("ucx:"))
    return Error::make(Code::kInvalidArgument, "address \"%.*s\": expected ucx:IP:PORT",
                       static_cast<int>(std::min<std::size_t>(text.size(), 100)), text.data());
  return SocketAddress::parse("tcp:" + std::string(text.substr(4)));
}

std::string text_of(const sockaddr_storage& address) {
  SocketAddress socket;
  socket.storage = address;
  return "ucx:" + socket.text().substr(4);
}

std::span<const std::byte> bytes_at(const void* at, std::size_t count) {
  return {static_cast<const std::byte*>(at), count};
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<UcxTransport> transport, UcxTransport::open(options));
  return std::unique_ptr<Transport>(std::move(transport));
}

Result<std::unique_ptr<UcxTransport>> UcxTransport::open(const UcxOptions& options) {
  CACHALOT_TRY_ASSIGN(const UcxLibrary ucx, UcxLibrary::load(options.library));
  std::unique_ptr<UcxTransport> transport(new UcxTransport);
  transport->shared_.ucx = ucx;
  CACHALOT_TRY(transport->init(options));
  base::log(base::LogLevel::kInfo, "transfer", "UCX %s of %s", ucx.get_version_string(),
            options.library.c_str());
  return transport;
}

Status UcxTransport::init(const UcxOptions& options) {
  CACHALOT_TRY(init_context(options));
  CACHALOT_TRY(init_worker());
  epoll_ = os::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  timer_ = os::FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_ || !timer_) return Error::from_errno(errno, "ucx: epoll_create1, timerfd_create");
  int events = -1;
  if (const ucs_status_t status = shared_.ucx.worker_get_efd(shared_.worker, &events);
      status != UCS_OK)
    return Error::make(Code::kIo, "ucx: ucp_worker_get_efd: %s", shared_.ucx.text(status));
  CACHALOT_TRY(watch(events));
  return watch(timer_.get());
}

Status UcxTransport::init_context(const UcxOptions& options) {
  const UcxLibrary& ucx = shared_.ucx;
  if (!options.log_level.empty() && ucx.set_global_option != nullptr)
    ucx.set_global_option("LOG_LEVEL", options.log_level.c_str());
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx.config_read(nullptr, nullptr, &config); status != UCS_OK)
    return Error::make(Code::kIo, "ucx: ucp_config_read: %s", ucx.text(status));
  const auto set = [&](const char* name, const std::string& value) -> Status {
    if (value.empty()) return {};
    const ucs_status_t status = ucx.config_modify(config, name, value.c_str());
    if (status == UCS_OK) return {};
    return Error::make(Code::kInvalidArgument, "ucx: %s=%s: %s", name, value.c_str(),
                       ucx.text(status));
  };
  Status status = set("TLS", options.transports);
  if (status.ok()) status = set("NET_DEVICES", options.devices);
  // Both ends need the first: the segments of a peer are written into buffers of this size, unchecked.
  unsigned major = 0, minor = 0, release = 0;
  ucx.get_version(&major, &minor, &release);
  const char* const prefix = major > 1 || minor >= 17 ? "TCP_" : "";
  if (status.ok()) status = set((std::string(prefix) + "RX_SEG_SIZE").c_str(), kTcpReceiveBytes);
  if (status.ok()) status = set((std::string(prefix) + "TX_SEG_SIZE").c_str(), kTcpSendBytes);
  // An address stands for one path: its adapter.
  if (status.ok() && options.devices.empty()) status = set("CM_USE_ALL_DEVICES", "n");
  if (status.ok()) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "cachalot";
    const ucs_status_t made =
        ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    if (made != UCS_OK) {
      status = Error::make(made == UCS_ERR_UNSUPPORTED ? Code::kVersionMismatch : Code::kIo,
                           "ucx: ucp_init of UCX %s: %s (transports \"%s\", devices \"%s\")",
                           ucx.get_version_string(), ucx.text(made), options.transports.c_str(),
                           options.devices.c_str());
    }
  }
  ucx.config_release(config);
  return status;
}

Status UcxTransport::init_worker() {
  const UcxLibrary& ucx = shared_.ucx;
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // one thread opens it, another one uses it
  if (const ucs_status_t status = ucx.worker_create(context_, &params, &shared_.worker);
      status != UCS_OK) {
    shared_.worker = nullptr;
    return Error::make(Code::kIo, "ucx: ucp_worker_create: %s", ucx.text(status));
  }
  CACHALOT_TRY(handle<UcxMessage::kSegment>());
  CACHALOT_TRY(handle<UcxMessage::kSlice>());
  return handle<UcxMessage::kVoid>();
}

template <UcxMessage kMessage>
Status UcxTransport::handle() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = static_cast<unsigned>(kMessage);
  handler.cb = on_message<kMessage>;
  handler.arg = this;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  const ucs_status_t status = shared_.ucx.worker_set_am_recv_handler(shared_.worker, &handler);
  if (status == UCS_OK) return {};
  return Error::make(Code::kIo, "ucx: ucp_worker_set_am_recv_handler: %s",
                     shared_.ucx.text(status));
}

Status UcxTransport::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return Error::from_errno(errno, "ucx: epoll_ctl");
  return {};
}

UcxTransport::~UcxTransport() {
  const UcxLibrary& ucx = shared_.ucx;
  if (shared_.worker != nullptr) {
    listeners_.clear();
    const Error ended = Error::make(Code::kCancelled, "the transport has ended");
    for (auto& link : links_) link->close(ended);
    for (auto& connection : connections_) {
      if (connection->link != nullptr) connection->finish(0);
    }
    const std::uint64_t end_ns = base::SteadyClock::read() + kMostEndNs;
    while (!connections_.empty() && base::SteadyClock::read() < end_ns) {
      while (ucx.worker_progress(shared_.worker) != 0) {
      }
      end_connections(base::SteadyClock::read());
      if (!connections_.empty()) usleep(100);
    }
    ucx.worker_destroy(shared_.worker);
  }
  if (context_ != nullptr) ucx.cleanup(context_);
}

void UcxTransport::start(LinkEvents& events, std::function<void(Link&)> accepted) {
  events_ = &events;
  accepted_ = std::move(accepted);
}

Result<std::string> UcxTransport::listen(std::string_view text) {
  CACHALOT_TRY_ASSIGN(const SocketAddress address, parse(text));
  CACHALOT_TRY_ASSIGN(std::unique_ptr<UcxListener> listener,
                      UcxListener::open(shared_, address, epoll_.get()));
  listeners_.push_back(std::move(listener));
  return text_of(listeners_.back()->address().storage);
}

Result<Link*> UcxTransport::connect(std::string_view text) {
  CACHALOT_TRY_ASSIGN(const SocketAddress address, parse(text));
  CACHALOT_TRY_ASSIGN(UcxDoorCall call, UcxDoorCall::begin(address, epoll_.get()));
  return &add(std::make_unique<UcxConnection>(shared_), std::move(call), std::string(text));
}

UcxLink& UcxTransport::add(std::unique_ptr<UcxConnection> connection,
                           std::optional<UcxDoorCall> call, std::string peer_address) {
  auto link = std::make_unique<UcxLink>(shared_, *connection, std::move(call),
                                        std::move(peer_address), *events_);
  connections_.push_back(std::move(connection));
  links_.push_back(std::move(link));
  return *links_.back();
}

void UcxTransport::accept_all(std::uint64_t now_ns) {
  for (auto& listener : listeners_) {
    listener->progress(now_ns, [this](ucp_conn_request_h request) { accept(request); });
  }
}

void UcxTransport::accept(ucp_conn_request_h request) {
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  std::string peer = "ucx";
  if (shared_.ucx.conn_request_query(request, &attributes) == UCS_OK)
    peer = text_of(attributes.client_address);
  auto connection = std::make_unique<UcxConnection>(shared_);
  if (const Status status = connection->accept(request); !status) {
    base::log(base::LogLevel::kWarn, "transfer", "%s: %s", peer.c_str(), status.error().message);
    return;
  }
  accepted_(add(std::move(connection), {}, std::move(peer)));
}

template <UcxMessage kMessage>
ucs_status_t UcxTransport::on_message(void* self, const void* header, std::size_t header_bytes,
                                      void* data, std::size_t bytes,
                                      const ucp_am_recv_param_t* param) {
  const auto& shared = static_cast<UcxTransport*>(self)->shared_;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  const auto found = shared.connections.find(param->reply_ep);
  if (found == shared.connections.end() || found->second->link == nullptr) return UCS_OK;
  UcxEvents& link = *found->second->link;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    link.fail("the peer sends by rendezvous; expected the data with the message");
  } else {
    link.take({kMessage, bytes_at(header, header_bytes), bytes_at(data, bytes)});
  }
  return UCS_OK;
}

bool UcxTransport::progress() {
  std::uint64_t ticks = 0;
  if (has_timer_) [[maybe_unused]]
    const ssize_t bytes = ::read(timer_.get(), &ticks, sizeof ticks);
  const std::uint64_t before = shared_.received_bytes;
  int turns = 0;
  while (turns < kMostProgress && shared_.ucx.worker_progress(shared_.worker) != 0) ++turns;
  // While much comes, one wake-up handles what comes within some microseconds. A thread that waits for each part costs
  // the sender, which wakes it, more than sending the part.
  const bool is_busy =
      turns < kMostProgress && shared_.received_bytes - before >= kSegmentBytes / 2;
  if (is_busy) {
    const timespec nap{0, kNapNs};
    nanosleep(&nap, nullptr);
  }
  const std::uint64_t now_ns = base::SteadyClock::read();
  accept_all(now_ns);
  bool is_more = turns == kMostProgress || is_busy;
  // A callback may add links; it never removes one.
  for (auto& link : links_) {
    if (link->is_runnable() || link->needs_progress()) is_more |= link->progress(now_ns);
  }
  std::erase_if(links_, [](const auto& link) { return link->is_closed(); });
  end_connections(now_ns);
  return is_more;
}

void UcxTransport::end_connections(std::uint64_t now_ns) {
  std::erase_if(connections_, [&](const auto& connection) {
    return connection->link == nullptr && connection->has_ended(now_ns);
  });
}

// Before waiting: something may have to be done though nothing comes.
void UcxTransport::set_timer() {
  const bool needs_timer =
      std::any_of(listeners_.begin(), listeners_.end(),
                  [](const auto& listener) { return listener->needs_timer(); }) ||
      std::any_of(links_.begin(), links_.end(),
                  [](const auto& link) { return link->needs_timer(); }) ||
      std::any_of(connections_.begin(), connections_.end(),
                  [](const auto& connection) { return connection->link == nullptr; });
  if (needs_timer == has_timer_) return;
  has_timer_ = needs_timer;
  itimerspec every{};
  if (needs_timer) every.it_value.tv_nsec = every.it_interval.tv_nsec = kTickNs;
  timerfd_settime(timer_.get(), 0, &every, nullptr);
}

bool UcxTransport::is_paused() const {
  return std::any_of(listeners_.begin(), listeners_.end(),
                     [](const auto& listener) { return listener->is_paused(); });
}

bool UcxTransport::arm() {
  for (const auto& link : links_) {
    if (link->is_runnable()) return false;
  }
  if (shared_.ucx.worker_arm(shared_.worker) == UCS_ERR_BUSY) return false;
  set_timer();
  return true;
}

}  // namespace cachalot::transfer

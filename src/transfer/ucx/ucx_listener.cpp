#include "transfer/ucx/ucx_listener.h"

#include <netinet/in.h>

#include <cstring>
#include <utility>

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kExpectNs = 5'000'000'000;

// The same address, with a port of the system's choice.
SocketAddress any_port(SocketAddress address) {
  std::memset(reinterpret_cast<std::byte*>(&address.storage) + offsetof(sockaddr_in, sin_port), 0,
              sizeof(in_port_t));
  return address;
}

}  // namespace

Result<std::unique_ptr<UcxListener>> UcxListener::open(UcxWorker& worker,
                                                       const SocketAddress& address, int epoll) {
  CACHALOT_TRY_ASSIGN(UcxDoor door, UcxDoor::open(address, epoll));
  return std::unique_ptr<UcxListener>(new UcxListener(worker, std::move(door)));
}

UcxListener::~UcxListener() {
  stop_listening();
}

void UcxListener::stop_listening() {
  if (ucx_ != nullptr) worker_.ucx.listener_destroy(std::exchange(ucx_, nullptr));
  expected_ = 0;
}

void UcxListener::progress(std::uint64_t now_ns,
                           const std::function<void(ucp_conn_request_h)>& accept) {
  door_.progress(now_ns, [&] { return expect(now_ns); });
  for (ucp_conn_request_h request : std::exchange(requests_, {})) accept(request);
  // Only now: a request that was not accepted needs its listener.
  if (ucx_ != nullptr && (expected_ == 0 || now_ns > until_ns_)) stop_listening();
}

Result<std::uint16_t> UcxListener::expect(std::uint64_t now_ns) {
  until_ns_ = now_ns + kExpectNs;
  if (ucx_ == nullptr) {
    const SocketAddress address = any_port(door_.address());
    ucp_listener_params_t params{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = {address.get(), address.bytes};
    params.conn_handler = {on_request, this};
    ucs_status_t status = worker_.ucx.listener_create(worker_.worker, &params, &ucx_);
    ucp_listener_attr_t attributes{};
    attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    if (status == UCS_OK) status = worker_.ucx.listener_query(ucx_, &attributes);
    if (status != UCS_OK) {
      stop_listening();
      return Error::make(Code::kIo, "ucx: ucp_listener_create: %s", worker_.ucx.text(status));
    }
    sockaddr_in in{};
    std::memcpy(&in, &attributes.sockaddr, sizeof in);
    port_ = ntohs(in.sin_port);
  }
  ++expected_;
  return port_;
}

void UcxListener::on_request(ucp_conn_request_h request, void* self) {
  auto& listener = *static_cast<UcxListener*>(self);
  listener.requests_.push_back(request);
  if (listener.expected_ > 0) --listener.expected_;
}

}  // namespace cachalot::transfer

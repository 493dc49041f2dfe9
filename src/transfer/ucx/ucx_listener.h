// Where peers connect: a door, and behind it UCX's listener while a caller is expected.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transfer/ucx/ucx_connection.h"
#include "transfer/ucx/ucx_door.h"

namespace cachalot::transfer {

class UcxListener {
 public:
  // @errors as listen_at()
  static Result<std::unique_ptr<UcxListener>> open(UcxWorker& worker, const SocketAddress& address,
                                                   int epoll);
  ~UcxListener();
  UcxListener(const UcxListener&) = delete;
  UcxListener& operator=(const UcxListener&) = delete;

  const SocketAddress& address() const { return door_.address(); }
  // @param accept  is called for each connection
  void progress(std::uint64_t now_ns, const std::function<void(ucp_conn_request_h)>& accept);
  bool is_paused() const { return door_.is_paused(); }
  bool needs_timer() const { return door_.has_callers() || ucx_ != nullptr; }

 private:
  UcxListener(UcxWorker& worker, UcxDoor door) : worker_(worker), door_(std::move(door)) {}
  Result<std::uint16_t> expect(std::uint64_t now_ns);
  void stop_listening();
  static void on_request(ucp_conn_request_h request, void* self);

  UcxWorker& worker_;
  UcxDoor door_;
  ucp_listener_h ucx_ = nullptr;
  std::uint16_t port_ = 0;
  unsigned expected_ = 0;  // callers that were answered and have not come
  std::uint64_t until_ns_ = 0;
  std::vector<ucp_conn_request_h> requests_;
};

}  // namespace cachalot::transfer

// Makes links over UCX. docs/decisions/0013 says why it is made like this.
#pragma once

#include <cachalot/result.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "transfer/link/link.h"
#include "transfer/ucx/open_ucx.h"
#include "transfer/ucx/ucx_connection.h"
#include "transfer/ucx/ucx_library.h"
#include "transfer/ucx/ucx_link.h"
#include "transfer/ucx/ucx_listener.h"

namespace cachalot::transfer {

class UcxTransport final : public Transport {
 public:
  // @errors as open_ucx()
  static Result<std::unique_ptr<UcxTransport>> open(const UcxOptions& options);
  ~UcxTransport() override;

  bool understands(std::string_view address) const override { return address.starts_with("ucx:"); }
  void start(LinkEvents& events, std::function<void(Link&)> accepted) override;
  // "ucx:IP:PORT"; port 0: the system chooses.
  Result<std::string> listen(std::string_view address) override;
  Result<Link*> connect(std::string_view address) override;

  bool progress() override;
  int fd() const override { return epoll_.get(); }
  bool arm() override;
  bool is_paused() const override;
  std::uint64_t staging_bytes() const override {
    return shared_.segments.bytes() + shared_.slices.bytes();
  }

 private:
  UcxTransport() = default;
  Status init(const UcxOptions& options);
  Status init_context(const UcxOptions& options);
  Status init_worker();
  Status watch(int fd);
  UcxLink& add(std::unique_ptr<UcxConnection> connection, std::optional<UcxDoorCall> call,
               std::string peer_address);
  void accept_all(std::uint64_t now_ns);
  void accept(ucp_conn_request_h request);
  void set_timer();
  // Destroys connections whose links have closed, as soon as UCX has let go of them.
  void end_connections(std::uint64_t now_ns);
  template <UcxMessage kMessage>
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
  template <UcxMessage kMessage>
  Status handle();

  ucp_context_h context_ = nullptr;
  UcxWorker shared_;
  os::FileDescriptor epoll_, timer_;
  LinkEvents* events_ = nullptr;
  std::function<void(Link&)> accepted_;
  std::vector<std::unique_ptr<UcxListener>> listeners_;
  std::list<std::unique_ptr<UcxLink>> links_;
  std::list<std::unique_ptr<UcxConnection>> connections_;
  bool has_timer_ = false;  // it runs
};

}  // namespace cachalot::transfer

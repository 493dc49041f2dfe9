#include "transfer/ucx/ucx_connection.h"

#include <utility>

namespace cachalot::transfer {

Status UcxConnection::create(ucp_ep_params_t& params) {
  // Without this mode UCX ends the process when a peer dies.
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_failure, this};
  const ucs_status_t status = worker_.ucx.ep_create(worker_.worker, &params, &ep_);
  if (status != UCS_OK) {
    ep_ = nullptr;
    return Error::make(Code::kIo, "ucp_ep_create: %s", worker_.ucx.text(status));
  }
  worker_.connections[ep_] = this;
  return {};
}

// An endpoint that is made for a connection owns its sockets. One that is made from a worker's address shares them:
// after it was closed, UCX would still write what the peer sends into memory of a receive that it has ended.
Status UcxConnection::connect(const SocketAddress& to) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {to.get(), to.bytes};
  return create(params);
}

Status UcxConnection::accept(ucp_conn_request_h request) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  return create(params);
}

void UcxConnection::on_failure(void* self, ucp_ep_h, ucs_status_t status) {
  auto& connection = *static_cast<UcxConnection*>(self);
  connection.has_failed_ = true;
  if (connection.link != nullptr) connection.link->fail(connection.worker_.ucx.text(status));
}

void UcxConnection::send(UcxMessage message, std::span<const std::byte> header,
                         std::span<const std::byte> data, std::unique_ptr<UcxOperation> operation) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = on_sent;
  UcxOperation* const pending = begin(std::move(operation));
  param.user_data = pending;
  began(worker_.ucx.am_send_nbx(ep_, static_cast<unsigned>(message), header.data(), header.size(),
                                data.data(), data.size(), &param),
        pending);
}

// UCX may call back before its function returns.
UcxOperation* UcxConnection::begin(std::unique_ptr<UcxOperation> operation) {
  operation->connection_ = this;
  ++in_flight_;
  return operation.release();
}

void UcxConnection::began(ucs_status_ptr_t request, UcxOperation* operation) {
  if (!UCS_PTR_IS_PTR(request)) end(UCS_PTR_STATUS(request), operation);
}

void UcxConnection::end(ucs_status_t status, UcxOperation* operation) {
  const std::unique_ptr<UcxOperation> ended(operation);
  UcxConnection& connection = *ended->connection_;
  --connection.in_flight_;
  ended->on_end(status == UCS_OK);
  // A cancelled one has no reason of its own: on_failure() comes.
  if (status != UCS_OK && status != UCS_ERR_CANCELED && connection.link != nullptr)
    connection.link->fail(connection.worker_.ucx.text(status));
}

void UcxConnection::on_sent(void* request, ucs_status_t status, void* user) {
  auto* operation = static_cast<UcxOperation*>(user);
  operation->connection_->worker_.ucx.request_free(request);
  end(status, operation);
}

void UcxConnection::finish(std::uint64_t flush_until_ns) {
  link = nullptr;
  if (ep_ == nullptr) return;
  if (flush_until_ns != 0 && !has_failed_) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_flushed;
    param.user_data = this;
    is_flushing_ = true;
    flush_until_ns_ = flush_until_ns;
    ++in_flight_;
    if (UCS_PTR_IS_PTR(worker_.ucx.ep_flush_nbx(ep_, &param))) return;
    is_flushing_ = false;
    --in_flight_;
  }
  drop();
}

void UcxConnection::on_flushed(void* request, ucs_status_t, void* self) {
  UcxConnection& connection = *static_cast<UcxConnection*>(self);
  connection.is_flushing_ = false;
  --connection.in_flight_;
  connection.worker_.ucx.request_free(request);
}

void UcxConnection::drop() {
  if (ep_ == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  worker_.connections.erase(ep_);
  const ucs_status_ptr_t request = worker_.ucx.ep_close_nbx(std::exchange(ep_, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) worker_.ucx.request_free(request);
}

bool UcxConnection::has_ended(std::uint64_t now_ns) {
  if (ep_ != nullptr && (!is_flushing_ || has_failed_ || now_ns >= flush_until_ns_)) drop();
  return ep_ == nullptr && in_flight_ == 0;
}

}  // namespace cachalot::transfer

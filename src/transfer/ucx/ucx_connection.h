// One endpoint of UCX: sends and receives in order, reports its failure, and ends without blocking.
//
// 1. An operation lives until UCX has ended it; then on_end() is called, once, and it is destroyed.
// 2. A connection outlives its link: after finish() it still sends what was given, for a bounded time.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "transfer/link/socket_address.h"
#include "transfer/ucx/buffer_arena.h"
#include "transfer/ucx/ucx_library.h"
#include "transfer/ucx/ucx_wire.h"

namespace cachalot::transfer {

class UcxConnection;
struct UcxArrival;

// What all connections of a transport share.
struct UcxWorker {
  UcxLibrary ucx = {};
  ucp_worker_h worker = nullptr;
  std::uint64_t received_bytes = 0;
  BufferArena segments{kSegmentBytes};
  BufferArena slices{kPackedBytes};
  std::unordered_map<ucp_ep_h, UcxConnection*> connections = {};  // whose endpoints are open
};

class UcxOperation {
 public:
  UcxOperation() = default;
  UcxOperation(const UcxOperation&) = delete;
  UcxOperation& operator=(const UcxOperation&) = delete;
  virtual ~UcxOperation() = default;
  // UCX touches nothing of it any more.
  virtual void on_end(bool is_done) = 0;

 private:
  friend class UcxConnection;
  UcxConnection* connection_ = nullptr;
};

// The link of a connection: what UCX says, it is told.
class UcxEvents {
 public:
  virtual void take(const UcxArrival& arrival) = 0;
  virtual void fail(const char* why) = 0;

 protected:
  ~UcxEvents() = default;
};

class UcxConnection {
 public:
  explicit UcxConnection(UcxWorker& worker) : worker_(worker) {}
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  // @errors kIo
  Status connect(const SocketAddress& to);
  Status accept(ucp_conn_request_h request);

  bool is_open() const { return ep_ != nullptr && !has_failed_; }
  // `header` and `data` stay as they are until the operation ends; it may end at once. The data goes along, and the
  // peer copies it from where UCX has received it.
  void send(UcxMessage message, std::span<const std::byte> header, std::span<const std::byte> data,
            std::unique_ptr<UcxOperation> operation);
  std::size_t in_flight() const { return in_flight_; }

  // Begins to end. @param flush_until_ns  0: what UCX has not sent yet is dropped
  void finish(std::uint64_t flush_until_ns);
  // Ends at once: within further calls of ucp_worker_progress() all operations end.
  void drop();
  // @return whether UCX has given everything back: it can be destroyed
  bool has_ended(std::uint64_t now_ns);

  UcxEvents* link = nullptr;  // null: it has closed
  unsigned segments = 0;      // in flight

 private:
  Status create(ucp_ep_params_t& params);
  UcxOperation* begin(std::unique_ptr<UcxOperation> operation);
  static void began(ucs_status_ptr_t request, UcxOperation* operation);
  static void end(ucs_status_t status, UcxOperation* operation);
  static void on_sent(void* request, ucs_status_t status, void* operation);
  static void on_failure(void* self, ucp_ep_h ep, ucs_status_t status);
  static void on_flushed(void* request, ucs_status_t status, void* self);

  UcxWorker& worker_;
  ucp_ep_h ep_ = nullptr;
  bool has_failed_ = false;  // UCX says that the peer is gone
  std::size_t in_flight_ = 0;
  bool is_flushing_ = false;
  std::uint64_t flush_until_ns_ = 0;
};

}  // namespace cachalot::transfer

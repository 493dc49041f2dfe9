// A link over a stream socket, of TCP or of this machine (unix). The kernel gathers a payload from the sender's pages
// and scatters it into the receiver's: writev and readv, no buffer between. Small pieces go through a small buffer on
// either side (decision 0014). With the cluster's key, a link over TCP is encrypted (tls.h), which costs a copy.
#pragma once

#include <cachalot/result.h>
#include <sys/uio.h>

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "transfer/link/link.h"
#include "transfer/link/tls.h"

namespace cachalot::transfer {

class PayloadHash;

class SocketLink final : public Link {
 public:
  // @param is_connecting  connect() was begun and has not ended
  // @param tls            encrypts the link, and outlives it; null: none does
  SocketLink(os::FileDescriptor fd, bool is_unix, bool is_connecting, std::string peer_address,
             LinkEvents& events, TlsContext* tls = nullptr);
  ~SocketLink() override;

  void send(const Frame& frame) override;
  void wants_payload() override { has_payloads_ = true; }
  void close(const Error& error) override;
  std::uint32_t peer_process() const override;
  std::uint64_t received_bytes() const override;
  const std::string& peer_address() const override { return address_; }
  std::uint64_t waiting_bytes() const override { return control_bytes_; }

  // Memory in which small pieces are packed.
  std::uint64_t staging_bytes() const {
    return packed_.size() + arrived_.size() + (tls_ ? tls_->buffer_bytes() : 0);
  }

  int fd() const { return fd_.get(); }
  // What epoll reported since.
  void ready(bool readable, bool writable);
  // Reads and writes, a few MiB at most. @return whether there may be more to do now
  bool progress();
  bool is_runnable() const;
  // on_closed() was called.
  bool is_closed() const { return is_closed_; }

 private:
  struct Incoming;
  struct Outgoing;

  bool shakes_hands() const { return tls_ && !tls_->is_open(); }
  void shake_hands();
  // Reading.
  ssize_t receive(std::span<const iovec> parts);
  bool read_some();
  bool read_payload();
  Status take(const std::byte* bytes, std::size_t count, std::size_t& used);
  void take_payload_bytes(const std::byte* bytes, std::size_t count);
  Status end_payload();
  void stop_reading(int error);
  void damage(Incoming& in);
  // Writing.
  ssize_t transmit();
  bool write_some();
  bool add_control();
  void add_payload();
  bool pack(Outgoing& out, std::uint64_t offset, std::uint64_t want);
  std::uint64_t add_packed(const Outgoing& out, std::uint64_t offset);
  void consume(std::size_t sent);
  void finish_close();

  os::FileDescriptor fd_;
  const bool is_unix_;
  bool is_connecting_;
  const std::string address_;
  LinkEvents& events_;
  std::unique_ptr<TlsStream> tls_;

  bool readable_ = false, writable_ = false, is_closed_ = false;
  std::uint64_t received_bytes_ = 0;  // of these that were read
  std::uint64_t wake_bytes_ = 1;      // so many waiting bytes make the socket readable
  bool has_payloads_ = true;          // next_payload() may have one
  std::optional<Error> closing_;

  std::vector<std::byte> buffer_;      // bytes of a header, body or trailer so far
  std::unique_ptr<Incoming> reading_;  // a payload follows or has begun
  std::deque<std::vector<std::byte>> control_;
  std::size_t control_sent_ = 0;  // of the first one
  std::uint64_t control_bytes_ = 0;
  std::unique_ptr<Outgoing> writing_;
  std::vector<iovec> parts_;  // of one system call
  // Small pieces on their way to the kernel and from it; empty until there are some.
  std::vector<std::byte> packed_, arrived_;
};

}  // namespace cachalot::transfer

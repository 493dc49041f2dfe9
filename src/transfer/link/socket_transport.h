// Links over sockets: TCP between machines, unix sockets between processes of one machine.
//
// A unix socket carries frames only as a rule: on one machine the receiver copies straight out of the sender's memory
// (peer_memory.h).
#pragma once

#include <cachalot/result.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "transfer/link/acceptor.h"
#include "transfer/link/link.h"
#include "transfer/link/socket_address.h"
#include "transfer/link/socket_link.h"
#include "transfer/link/tls.h"

namespace cachalot::transfer {

class SocketTransport final : public Transport {
 public:
  // @param  cluster_key  encrypts the links over TCP; none: they are open
  // @errors kIo: no epoll; kInternal: no TLS
  static Result<std::unique_ptr<SocketTransport>> open(
      const std::optional<os::SecretKey>& cluster_key = {});
  ~SocketTransport() override;

  bool understands(std::string_view address) const override {
    return address.starts_with("tcp:") || address.starts_with("unix:");
  }
  void start(LinkEvents& events, std::function<void(Link&)> accepted) override;
  Result<std::string> listen(std::string_view address) override;
  // "tcp:IP:PORT", or "tcp:IP:PORT from IP": from the adapter with this address.
  Result<Link*> connect(std::string_view address) override;

  bool progress() override;
  int fd() const override { return epoll_.get(); }
  bool arm() override;
  bool is_paused() const override;
  std::uint64_t staging_bytes() const override;

 private:
  explicit SocketTransport(os::FileDescriptor epoll) : epoll_(std::move(epoll)) {}
  Status watch(int fd, std::uint64_t key, std::uint32_t events);
  Result<SocketLink*> add(os::FileDescriptor fd, bool is_unix, bool is_connecting,
                          std::string peer_address);
  // @return whether more may wait
  bool accept_some(Acceptor& listener);

  os::FileDescriptor epoll_;
  std::unique_ptr<TlsContext> tls_;
  LinkEvents* events_ = nullptr;
  std::function<void(Link&)> accepted_;
  std::map<std::uint64_t, Acceptor> listeners_;
  std::map<std::uint64_t, std::unique_ptr<SocketLink>> links_;
  std::uint64_t next_key_ = 1;
};

}  // namespace cachalot::transfer

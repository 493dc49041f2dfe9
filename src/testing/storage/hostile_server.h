// A TCP server in the test's process that says what it likes: to the first bytes of each connection it sends `start`,
// then `more` again and again until the other side has closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "os/file_descriptor.h"

namespace cachalot::storage {

struct HostileAnswer {
  std::string start = {}, more = {};
  std::chrono::milliseconds pause = {};  // before each `more`
};

class HostileServer {
 public:
  explicit HostileServer(HostileAnswer answer);
  ~HostileServer();

  std::uint16_t port() const { return port_; }

 private:
  struct Peer {
    os::FileDescriptor socket;
    std::string waiting;  // to be sent
    bool is_answered = false;
    std::chrono::steady_clock::time_point next_more = {};
  };
  void serve(const std::stop_token& ended);
  bool turn(Peer& peer) const;

  const HostileAnswer answer_;
  os::FileDescriptor listener_;
  std::uint16_t port_ = 0;
  std::jthread thread_;
};

}  // namespace cachalot::storage

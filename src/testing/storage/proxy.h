// A TCP proxy in the test's process, which breaks connections on request.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "os/file_descriptor.h"

namespace cachalot::storage {

class TestProxy {
 public:
  enum class Mode {
    kPass,
    kHold,   // accepts, and forwards nothing
    kReset,  // resets every connection, also new ones
    kFull,   // answers each HTTP PUT with 507, passes the rest
    kDrip,   // forwards 64 bytes a turn
    // To the client, in each piece that the server sends:
    kFlip,    // one bit is another one
    kRepeat,  // the piece comes twice
  };

  explicit TestProxy(std::uint16_t target);
  ~TestProxy();

  std::uint16_t port() const { return port_; }
  // Returns when it is so: nothing is forwarded by the mode before.
  void set(Mode mode);
  // Resets the connections that are there, after this many more bytes of theirs in sum (both ways).
  void reset_after(std::uint64_t bytes) { reset_after_ = static_cast<std::int64_t>(bytes); }
  std::uint64_t resets() const { return resets_; }

 private:
  struct Link {
    os::FileDescriptor client, server;
    std::vector<char> to_client, to_server;
    bool is_refused = false;  // what its client sends is dropped
  };
  void serve();
  bool refuse(Link& link);
  bool forward(os::FileDescriptor& from, os::FileDescriptor& to, std::vector<char>& waiting,
               bool is_damaged);
  void damage(std::vector<char>& waiting, std::size_t piece);
  void reset_all(std::vector<Link>& links);

  const std::uint16_t target_;
  os::FileDescriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<Mode> mode_{Mode::kPass};
  std::atomic<std::int64_t> reset_after_{-1};
  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> turns_{0};  // of serve()
  std::uint64_t flips_ = 0;              // its thread's
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace cachalot::storage

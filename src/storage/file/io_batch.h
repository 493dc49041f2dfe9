// Reads and writes of files, many at a time: io_uring, or one system call after the other where the kernel
// does not offer it (old kernels, containers that forbid it).
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace cachalot::storage {

struct IoRequest {
  int fd = -1;
  bool is_write = false;
  std::uint64_t offset = 0;
  std::span<iovec> pieces;  // at most IOV_MAX; changed by the call
  // Filled by the call: 0, or an errno. ENODATA: the file ends before the request's last byte.
  int os_error = 0;
};

class IoBatch {
 public:
  enum class Kind { kUring, kSystemCalls };

  // @param depth  requests in flight at a time
  // @param kind   kUring falls back to kSystemCalls; kind() tells
  static std::unique_ptr<IoBatch> make(std::uint32_t depth, Kind kind = Kind::kUring);
  virtual ~IoBatch() = default;

  // Called with the index of a request that has ended, while others are in flight.
  using Ended = std::function<void(std::size_t)>;

  // Called with the index of a request before it begins. It may set the addresses of the request's pieces.
  // @return false: no memory is free; it is called again after another request has ended. When all requests that have begun
  //         have ended, it returns true.
  using Begins = std::function<bool(std::size_t)>;

  // Begins them in their order, and returns when none is in flight. Short transfers are continued.
  virtual void run(std::span<IoRequest> requests, const Begins& begins, const Ended& ended) = 0;
  void run(std::span<IoRequest> requests) {
    run(
        requests, [](std::size_t) { return true; }, [](std::size_t) {});
  }
  virtual Kind kind() const = 0;
};

}  // namespace cachalot::storage

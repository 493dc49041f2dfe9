// A second process, on the other core, that does one job at a time when told to.
//
// Between jobs it sleeps in read(), so that it can wait beside a keeper on the same core.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>

#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::apps::bench {

struct Command {
  std::uint32_t job = 0;  // what it means is between the two
  std::uint32_t option = 0;
  std::uint64_t count = 0;
  std::uint64_t first = 0;
};

class Peer {
 public:
  using Serve = std::function<std::uint64_t(const Command&)>;
  // Makes in the child what it needs there, after fork(): nothing mapped from a pool survives it.
  using Prepare = std::function<Result<Serve>()>;

  // @errors those of `prepare`, in the child's words
  static Result<Peer> start(int core, const Prepare& prepare);

  // Begins a job; the next call must be end(), which waits for what the job returned.
  // @errors kIo: the child is gone
  Status begin(const Command& command);
  Result<std::uint64_t> end();

  pid_t pid() const { return child_.pid(); }

 private:
  Peer(os::Child child, os::FileDescriptor socket)
      : child_(std::move(child)), socket_(std::move(socket)) {}

  os::Child child_;
  os::FileDescriptor socket_;
};

}  // namespace cachalot::apps::bench

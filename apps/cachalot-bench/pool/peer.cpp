#include "peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "os/topology.h"

namespace cachalot::apps::bench {
namespace {

template <class T>
bool send_all(int socket, const T& value) {
  return ::send(socket, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}

template <class T>
bool receive_all(int socket, T& value) {
  return ::recv(socket, &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

// The child's life: the outcome of its preparations, then a result for each command.
int live(int socket, int core, const Peer::Prepare& prepare) {
  (void)os::pin_to_core(core);
  Result<Peer::Serve> serve = prepare();
  const Error outcome = serve ? Error{} : serve.error();
  if (!send_all(socket, serve.ok()) || !send_all(socket, outcome) || !serve) return 1;
  for (Command command; receive_all(socket, command);) {
    if (!send_all(socket, (*serve)(command))) return 1;
  }
  return 0;
}

}  // namespace

Result<Peer> Peer::start(int core, const Prepare& prepare) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error::from_errno(errno, "socketpair");
  }
  os::FileDescriptor own(ends[0]), other(ends[1]);
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        own = os::FileDescriptor();
                        return live(other.get(), core, prepare);
                      }));
  other = os::FileDescriptor();
  bool is_ready = false;
  Error outcome;
  if (!receive_all(own.get(), is_ready) || !receive_all(own.get(), outcome)) {
    return Error::make(Code::kIo, "bench: the second process ended before it began");
  }
  if (!is_ready) return outcome;
  return Peer(std::move(child), std::move(own));
}

Status Peer::begin(const Command& command) {
  if (send_all(socket_.get(), command)) return {};
  return Error::make(Code::kIo, "bench: the second process is gone");
}

Result<std::uint64_t> Peer::end() {
  std::uint64_t result = 0;
  if (receive_all(socket_.get(), result)) return result;
  return Error::make(Code::kIo, "bench: the second process is gone");
}

}  // namespace cachalot::apps::bench

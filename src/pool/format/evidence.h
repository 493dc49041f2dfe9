// Proof that a process stores into the pool no more.
//
// Silence is none: a stalled process, a forked child, a copy thread or a kernel on a device may wake
// up and go on storing. So blocks that a suspect holds stay out of use until one of these is known
// (docs/design/recovery.md):
//   - its process has exited, seen on its machine, by the keeper or by the host's agent (pool/hosts/host_agent.h);
//   - its machine has booted since;
//   - the same process attached again and vouched that its old incarnation is drained;
//   - an operator fenced it.
#pragma once

#include <cstdint>

#include "pool/format/format.h"

namespace cachalot::pool {

// A process that never comes back for another one.
struct ProcessIdentity {
  std::uint32_t host = 0;
  std::uint32_t pid = 0;
  std::uint32_t pid_namespace = 0;
  std::uint32_t time_namespace = 0;
  std::uint64_t start_time = 0;
  std::uint64_t boot_id_low = 0, boot_id_high = 0;

  bool operator==(const ProcessIdentity&) const = default;
};

inline ProcessIdentity identity_of(const ClientLine& line) {
  return {line.host,       line.pid,         line.pid_namespace, line.time_namespace,
          line.start_time, line.boot_id_low, line.boot_id_high};
}
inline ProcessIdentity identity_of(const DepartureLine& line) {
  return {line.host,       line.pid,         line.pid_namespace, line.time_namespace,
          line.start_time, line.boot_id_low, line.boot_id_high};
}
inline ProcessIdentity identity_of(const KeeperLine& line) {
  return {line.host,       line.pid,         line.pid_namespace, line.time_namespace,
          line.start_time, line.boot_id_low, line.boot_id_high};
}
inline ProcessIdentity identity_of(const ViewLine& line) {
  return {line.host,       line.pid,         line.pid_namespace, line.time_namespace,
          line.start_time, line.boot_id_low, line.boot_id_high};
}

// Sees processes end. @threads one
class Evidence {
 public:
  virtual ~Evidence() = default;
  // True only if it is known that the process has exited, and that all it stored has left its core.
  virtual bool has_exited(const ProcessIdentity& process) = 0;
};

}  // namespace cachalot::pool

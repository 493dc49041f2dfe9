#include "pool/hosts/host_evidence.h"

namespace cachalot::pool {
Result<HostEvidence> HostEvidence::make() {
  CACHALOT_TRY_ASSIGN(const os::Uuid boot, os::boot_id());
  CACHALOT_TRY_ASSIGN(const os::Namespaces namespaces, os::namespaces());
  return HostEvidence(boot, namespaces);
}

// Of a process of another machine, or of another pid or time namespace, nothing is known: this one
// does not read the pid, or the start time, that the other one wrote.
bool HostEvidence::is_seen(const ProcessIdentity& process) const {
  return is_of_this_boot(process) && process.pid_namespace == namespaces_.pid &&
         process.time_namespace == namespaces_.time;
}

// A process that exited has left its cores, and no core leaves a process before its write-combining
// buffers have drained: the way into the kernel and to the next process takes locked instructions.
bool HostEvidence::has_exited(const ProcessIdentity& process) {
  return is_seen(process) && !os::process_alive(process.pid, process.start_time);
}

}  // namespace cachalot::pool

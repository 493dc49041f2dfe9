// What a machine knows of the end of its own processes.
#pragma once

#include <cachalot/result.h>

#include "os/process.h"
#include "pool/format/evidence.h"

namespace cachalot::pool {

// Sees the processes of this machine end. @threads one
class HostEvidence final : public Evidence {
 public:
  // @errors kIo: no /proc
  static Result<HostEvidence> make();

  bool has_exited(const ProcessIdentity& process) override;
  // True only if it is known that the process runs, or stands still and may run on.
  bool is_alive(const ProcessIdentity& process) const {
    return is_seen(process) && os::process_alive(process.pid, process.start_time);
  }
  bool is_of_this_boot(const ProcessIdentity& process) const {
    return process.boot_id_low == boot_.low && process.boot_id_high == boot_.high;
  }
  const os::Uuid& boot() const { return boot_; }
  const os::Namespaces& namespaces() const { return namespaces_; }

 private:
  HostEvidence(const os::Uuid& boot, const os::Namespaces& namespaces)
      : boot_(boot), namespaces_(namespaces) {}

  bool is_seen(const ProcessIdentity& process) const;

  os::Uuid boot_;
  os::Namespaces namespaces_;
};

}  // namespace cachalot::pool

// The agent of a host: tells a pool's keeper, which may be on another machine, that processes of this one have ended.
//
// A keeper sees only its own machine's processes. For all others it reads what their hosts' agents write: a
// DepartureLine for each client slot, and in the HostLine up to which epoch this host's keepers have ended. Nothing
// is concluded from silence: a host whose agent is silent keeps what its clients hold, until it speaks again, boots,
// or an operator fences its clients.
//
// One agent speaks for a host: of several processes on one machine the first to take the host's lock. The HostLine
// says which machine that is. Another machine gets the number only if it is the same one after a boot, or if an
// operator says that the one before is off for good. In both cases no process of an earlier boot runs any more.
//
// Lines (R1): DepartureLine and HostLine of a host are written by its agent alone.
//
// @threads one
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "os/file_lock.h"
#include "os/process.h"
#include "pool/format/access.h"
#include "pool/format/evidence.h"

namespace cachalot::pool {

struct HostAgentOptions {
  std::uint32_t host = 0;
  // The operator's word: the machine that had this number is off, and stays off.
  bool replaces_machine = false;
};

// This machine and its processes, as an agent sees them; tests make their own.
struct Machine {
  os::Uuid boot;
  os::Uuid name;       // os::machine_id()
  Evidence* evidence;  // of processes of this boot
};

class HostAgent {
 public:
  // For so long a line of another boot is watched before its number is taken: an agent that still beats is another
  // machine with the same name.
  static constexpr std::uint64_t kWatchNs = 2'000'000'000;

  // @param machine  its evidence outlives the agent
  HostAgent(const Access& access, const HostAgentOptions& options, const Machine& machine,
            base::Clock& clock)
      : access_(access), options_(options), machine_(machine), clock_(clock) {}

  // Takes the host's number for this machine; call it until it says true. The caller holds the host's lock.
  // @return false: the line before is being watched
  // @errors kBusy: the number is another machine's
  Result<bool> claim();

  // Beats, and writes the departures that are new. After claim() said true.
  void look();

 private:
  std::uint64_t line_offset() const {
    return access_.layout.host_line(access_.geometry.first_client(options_.host));
  }
  Error is_of_another_machine(const HostLine& line) const;
  bool has_ended(const ProcessIdentity& process) const;
  void look_at_clients();
  std::uint32_t find_ended_epoch() const;

  const Access& access_;
  const HostAgentOptions options_;
  const Machine machine_;
  base::Clock& clock_;
  HostLine line_{};
  // The line of another boot that is being watched, and since when.
  std::optional<HostLine> watched_;
  std::uint64_t watched_since_ns_ = 0;
};

}  // namespace cachalot::pool

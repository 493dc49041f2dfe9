#include "pool/hosts/host_agent.h"

#include <algorithm>

#include "base/log.h"
#include "pool/format/departures.h"
#include "pool/keeper/keeper_line.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

Result<bool> HostAgent::claim() {
  HostLine before{};
  const bool is_taken = access_.region.read_as(line_offset(), before);
  const bool is_of_this_boot =
      before.boot_id_low == machine_.boot.low && before.boot_id_high == machine_.boot.high;
  if (is_taken && !is_of_this_boot) {
    const bool is_same_machine = !(machine_.name == os::Uuid{}) &&
                                 before.machine_low == machine_.name.low &&
                                 before.machine_high == machine_.name.high;
    if (!is_same_machine && !options_.replaces_machine) return is_of_another_machine(before);
    if (!watched_) {
      watched_ = before;
      watched_since_ns_ = clock_.now_ns();
    }
    if (watched_->beat != before.beat) {
      watched_.reset();
      return Error::make(Code::kBusy,
                         "host %u: another machine with this number is alive: give each machine a "
                         "number of its own",
                         options_.host);
    }
    if (clock_.now_ns() - watched_since_ns_ < kWatchNs) return false;
  }
  line_ = {};
  line_.beat = before.beat;
  line_.boot_id_low = machine_.boot.low;
  line_.boot_id_high = machine_.boot.high;
  line_.machine_low = machine_.name.low;
  line_.machine_high = machine_.name.high;
  line_.host = options_.host;
  line_.agent_pid = os::own_pid();
  look();
  return true;
}

Error HostAgent::is_of_another_machine(const HostLine& line) const {
  return Error::make(Code::kBusy,
                     "host %u: this number is another machine's (%016llx%016llx, this one is "
                     "%016llx%016llx): give "
                     "this machine another number, or, if that one is off for good, --replace-host",
                     options_.host, static_cast<unsigned long long>(line.machine_high),
                     static_cast<unsigned long long>(line.machine_low),
                     static_cast<unsigned long long>(machine_.name.high),
                     static_cast<unsigned long long>(machine_.name.low));
}

void HostAgent::look() {
  look_at_clients();
  ++line_.beat;
  line_.ended_epoch = find_ended_epoch();
  access_.region.publish(line_offset(), line_);
  access_.domain().complete();
}

// A process of an earlier boot is gone: the claim made sure that it was this machine's, or that of one that is off.
bool HostAgent::has_ended(const ProcessIdentity& process) const {
  if (process.pid == 0 || process.host != options_.host) return false;
  const bool is_of_this_boot =
      process.boot_id_low == machine_.boot.low && process.boot_id_high == machine_.boot.high;
  return !is_of_this_boot || machine_.evidence->has_exited(process);
}

// By the ruling keeper's view: that is what it waits for, over any number of keepers.
void HostAgent::look_at_clients() {
  const KeeperView keeper = DirectoryReader(access_).read_keepers();
  if (keeper.epoch == 0) return;
  const std::uint32_t first = access_.geometry.first_client(options_.host);
  for (std::uint32_t client = first; client < first + access_.geometry.clients_per_host();
       ++client) {
    ViewLine view{};
    if (!access_.region.read_as(access_.layout.view_line(keeper.keeper, client), view)) continue;
    const ProcessIdentity process = identity_of(view);
    const bool is_waited_for = (view.flags & (kViewOpen | kViewHeld)) != 0;
    if (!is_waited_for || !has_ended(process) || is_departed(access_, client, process)) continue;
    DepartureLine line{};
    line.host = process.host;
    line.pid = process.pid;
    line.pid_namespace = process.pid_namespace;
    line.time_namespace = process.time_namespace;
    line.start_time = process.start_time;
    line.boot_id_low = process.boot_id_low;
    line.boot_id_high = process.boot_id_high;
    access_.region.publish(access_.layout.departure(client), line);
    base::log(base::LogLevel::kInfo, "host", "client %u: pid %u has ended", client, process.pid);
  }
}

// All of this host's keepers up to this epoch have ended: none that lives is below it.
std::uint32_t HostAgent::find_ended_epoch() const {
  std::uint32_t ended = line_.ended_epoch, living = ~0u;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
    const KeeperLine keeper = read_keeper_line(access_, area);
    if (keeper.epoch == 0 || keeper.host != options_.host) continue;
    if (has_ended(identity_of(keeper))) {
      ended = std::max(ended, keeper.epoch);
    } else {
      living = std::min(living, keeper.epoch);
    }
  }
  return std::min(ended, living - 1);
}

}  // namespace cachalot::pool

#include "pool/client_slots.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pool/client/call_time.h"
#include "pool/format/lock_bytes.h"

namespace cachalot::pool {
namespace {

// The slots of a host in the order in which a client tries them.
std::vector<std::uint32_t> slots_to_try(const Geometry& g, std::uint32_t host, bool is_operator) {
  const std::uint32_t first = host * g.clients_per_host();
  const std::uint32_t operators = first + g.clients_per_host() - 1;
  std::vector<std::uint32_t> slots;
  if (is_operator) slots.push_back(operators);
  for (std::uint32_t slot = first; slot < operators; ++slot) slots.push_back(slot);
  if (!is_operator && g.operator_clients() == 0) slots.push_back(operators);
  return slots;
}

// That the slot's last client had.
std::uint32_t pid_of(const Access& access, std::uint32_t slot) {
  ClientLine line{};
  access.region.read_as(access.layout.client_line(slot), line);
  return line.pid;
}

// Why a client finds no slot.
class Occupants {
 public:
  void add_attached(std::uint32_t pid) { ++attached_[pid]; }
  void add_held() { ++held_; }

  // "14 attached by 3 processes (9 by pid 4711), 2 held by suspects"
  std::string describe() const {
    std::uint32_t attached = 0;
    std::pair<std::uint32_t, std::uint32_t> most;  // pid, slots
    for (const auto& [pid, slots] : attached_) {
      attached += slots;
      if (slots > most.second) most = {pid, slots};
    }
    std::string text = std::to_string(attached) + " attached";
    if (attached != 0) {
      text += " by " + std::to_string(attached_.size()) +
              (attached_.size() == 1 ? " process (" : " processes (") +
              std::to_string(most.second) + " by pid " + std::to_string(most.first) + ")";
    }
    return text + ", " + std::to_string(held_) + " held by suspects";
  }

 private:
  std::map<std::uint32_t, std::uint32_t> attached_;  // slots of each process
  std::uint32_t held_ = 0;
};

}  // namespace

Result<PoolClient> ClientSlots::attach_anywhere(ClientOptions options) const {
  // All slots that are tried share the time of one.
  const std::uint64_t now_ns = base::SteadyClock::read();
  options.attach_by_ns =
      std::min(options.attach_by_ns, CallTime::later(now_ns, options.timeout_ns));
  const Geometry& g = access_->geometry;
  const char* name = pool_name();
  CACHALOT_TRY(check_host(options.host));
  Occupants occupants;
  for (const std::uint32_t slot : slots_to_try(g, options.host, options.is_operator)) {
    Result<os::FileLock> locked = lock(slot);
    if (!locked && locked.error().code != Code::kBusy) return locked.error();
    if (!locked) {
      occupants.add_attached(pid_of(*access_, slot));
      continue;
    }
    Result<PoolClient> attached =
        PoolClient::attach(*access_, options, slot, *std::move(locked), name);
    if (attached || attached.error().code != Code::kBusy) return attached;
    occupants.add_held();
  }
  return Error::make(
      Code::kBusy,
      "%.70s: all %u client slots of host %u%s are taken: %s; an engine takes one, and "
      "one for each rank: end clients, or create the pool with more --clients (`cachalot pool "
      "info`)",
      name, g.engine_clients() / g.hosts, options.host,
      options.is_operator ? ", and the operators'," : "", occupants.describe().c_str());
}

Result<PoolClient> ClientSlots::attach_at(const ClientOptions& options, std::uint32_t slot) const {
  CACHALOT_TRY(check_slot(options.host, slot));
  CACHALOT_TRY_ASSIGN(os::FileLock locked, lock(slot));
  return PoolClient::attach(*access_, options, slot, std::move(locked), pool_name());
}

// @errors kBusy: names the holder
Result<os::FileLock> ClientSlots::lock(std::uint32_t slot) const {
  const Geometry& g = access_->geometry;
  const char* name = pool_name();
  if (slot >= g.clients) {
    return Error::make(Code::kInvalidArgument, "%s: client slot %u: the pool's last one is %u",
                       name, slot, g.clients - 1);
  }
  Result<os::FileLock> locked = lock_byte(*file_, kFirstClientLock + slot);
  if (locked || locked.error().code != Code::kBusy) return locked;
  return Error::make(Code::kBusy, "%s: client slot %u is attached already, by pid %u", name, slot,
                     pid_of(*access_, slot));
}

Status ClientSlots::check_slot(std::uint32_t host, std::uint32_t slot) const {
  const Geometry& g = access_->geometry;
  CACHALOT_TRY(check_host(host));
  const std::uint32_t first = host * g.clients_per_host();
  if (slot >= first && slot - first < g.clients_per_host()) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: client slot %u is not one of host %u's, expected %u to %u", pool_name(),
                     slot, host, first, first + g.clients_per_host() - 1);
}

Status ClientSlots::check_host(std::uint32_t host) const {
  if (host < access_->geometry.hosts) return {};
  return Error::make(Code::kInvalidArgument, "%s: host number %u is not below the pool's %u",
                     pool_name(), host, access_->geometry.hosts);
}

}  // namespace cachalot::pool

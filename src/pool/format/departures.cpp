#include "pool/format/departures.h"

#include <cstring>

namespace cachalot::pool {
namespace {

// A line of another machine's that is acted upon: read twice, because its writer's stores may tear (R5).
template <class L>
bool read_twice(const Access& access, std::uint64_t offset, L& line) {
  L again{};
  return access.region.read_as(offset, line) && access.region.read_as(offset, again) &&
         std::memcmp(&line, &again, sizeof line) == 0;
}

}  // namespace

bool is_departed(const Access& access, std::uint32_t client, const ProcessIdentity& process) {
  DepartureLine line{};
  return process.pid != 0 && read_twice(access, access.layout.departure(client), line) &&
         identity_of(line) == process;
}

bool is_departed(const Access& access, const KeeperLine& keeper) {
  if (keeper.host >= access.geometry.hosts) return false;
  HostLine line{};
  const std::uint64_t offset = access.layout.host_line(access.geometry.first_client(keeper.host));
  return keeper.epoch != 0 && read_twice(access, offset, line) && line.host == keeper.host &&
         line.ended_epoch >= keeper.epoch;
}

}  // namespace cachalot::pool

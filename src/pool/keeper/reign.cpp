#include "pool/keeper/reign.h"

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/keeper/keeper_line.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

// A keeper that is in its own takeover may finish it just before it can see this announcement, and then has
// granted blocks that only its ledger knows. It looks for a successor between its last line and its first
// answer; this keeper looks for a finished one after its announcement. One of the two sees the other.
Status Reign::announce(std::uint32_t avoid_areas) {
  CACHALOT_TRY_ASSIGN(area_, next_keeper_area(access_, avoid_areas));
  for (predecessor_ = find_predecessor(access_);;) {
    if (predecessor_.highest_epoch >= 0xfffffffdu) {
      return Error::make(Code::kRefused, "pool: its keeper epochs are used up: create it anew");
    }
    epoch_ = next_epoch(predecessor_.highest_epoch);
    publish_line(predecessor_.min_epoch, answers_too_early() ? kKeeperServing : 0);
    const Predecessor now = find_predecessor(access_);
    if (now.epoch == predecessor_.epoch || predecessor_.is_lost) return {};
    predecessor_ = now;
  }
}

// Hosts 0 and 1 take turns.
std::uint32_t Reign::next_epoch(std::uint32_t highest) const {
  const bool is_other_hosts = access_.geometry.hosts > 1 && highest % 2 != options_.host % 2;
  return highest + (is_other_hosts ? 2 : 1);
}

void Reign::begin_to_serve() {
  publish_info();
  if (!answers_too_early()) publish_line(epoch_, kKeeperServing);
  is_serving_ = true;
}

void Reign::end() {
  publish_line(epoch_, 0);
  base::reach(FailPoint::kKeeperStopped);
}

void Reign::be_flushed() {
  publish_line(epoch_, kKeeperFlushed);
}

bool Reign::has_successor() const {
  return DirectoryReader(access_).read_keepers().epoch > epoch_;
}

void Reign::be_deposed() {
  is_deposed_ = true;
  base::log(base::LogLevel::kError, "keeper",
            "epoch %u is over: another keeper rules with epoch %u", epoch_,
            DirectoryReader(access_).read_keepers().epoch);
}

std::uint32_t Reign::mend_line() const {
  return mend_keeper_line(access_, area_, line_);
}

void Reign::publish_counters(const KeeperCounters& counters) {
  counters.publish(access_.region, access_.layout.keeper_counters(area_), ++counters_sequence_);
}

void Reign::publish_storage(const StorageState& state) {
  if (state == storage_) return;
  storage_ = state;
  publish_storage_state(access_, area_, epoch_, state);
}

void Reign::publish_line(std::uint32_t min_epoch, std::uint32_t flags) {
  line_ = {};
  line_.epoch = epoch_;
  line_.min_epoch = min_epoch;
  line_.flags = flags;
  if (!access_.domain().writes_whole_lines()) line_.flags |= kKeeperSplitLines;
  line_.pid = options_.pid;
  line_.start_time = options_.start_time;
  line_.boot_id_low = options_.boot_id_low;
  line_.boot_id_high = options_.boot_id_high;
  line_.host = options_.host;
  line_.pid_namespace = options_.pid_namespace;
  line_.time_namespace = options_.time_namespace;
  publish_keeper_line(access_, area_, line_);
}

void Reign::publish_info() const {
  KeeperInfoLine info{};
  info.epoch = epoch_;
  info.pins = static_cast<std::uint32_t>(options_.pins.size());
  info.priorities = static_cast<std::uint32_t>(options_.priorities.size());
  info.ttl_ns = options_.ttl_ns;
  info.since_unix_s = options_.unix_s ? options_.unix_s() : 0;
  options_.policy.copy(info.policy, sizeof info.policy - 1);
  options_.version.copy(info.version, sizeof info.version - 1);
  access_.region.publish(access_.layout.keeper_info(area_), info);
}

bool Reign::answers_too_early() const {
  return access_.domain().broken(Rule::kAnswerBeforeMinEpoch);
}

}  // namespace cachalot::pool

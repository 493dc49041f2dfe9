#include "pool/client/heartbeat.h"

namespace cachalot::pool {

using memory::Rule;

void Heartbeat::prepare(std::uint32_t incarnation, const KeeperView& keeper) {
  const std::lock_guard lock(mutex_);
  is_on_ = false;
  incarnation_ = incarnation;
  keeper_ = keeper.keeper;
  epoch_ = keeper.epoch;
}

void Heartbeat::set_on(bool is_on) {
  const std::lock_guard lock(mutex_);
  is_on_ = is_on;
}

void Heartbeat::end() {
  const std::lock_guard lock(mutex_);
  is_on_ = false;
  has_ended_ = true;
}

void Heartbeat::beat() {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return;
  const Access& access = context_.access;
  const std::uint64_t offset = access.layout.client_heartbeat(context_.slot);
  HeartbeatLine line{};
  if (access.domain().broken(Rule::kR1OneWriterPerLine)) access.region.read_as(offset, line);
  line.beat = ++beats_;
  line.incarnation = incarnation_;
  access.region.publish(offset, line);
}

bool Heartbeat::renew() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_on_) return false;
    look_under_lock();
  }
  beat();
  return true;
}

void Heartbeat::look_for_loss() {
  const std::lock_guard lock(mutex_);
  look_under_lock();
}

void Heartbeat::look_under_lock() {
  const Access& access = context_.access;
  if (access.domain().broken(Rule::kR1OneWriterPerLine)) return;
  ViewLine line{};
  const KeeperView now = directory_.read_keepers();
  const bool is_read = access.region.read_as(access.layout.view_line(keeper_, context_.slot), line);
  const bool is_ours =
      line.incarnation == incarnation_ && line.epoch == epoch_ && (line.flags & kViewOpen) != 0;
  if (now.epoch != epoch_ || (is_read && !is_ours)) set_lost(true);
}

std::uint64_t Heartbeat::next_beat() const {
  const std::lock_guard lock(mutex_);
  return beats_ + 1;
}

}  // namespace cachalot::pool

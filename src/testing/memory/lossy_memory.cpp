#include "testing/memory/lossy_memory.h"

#include "base/check.h"

namespace cachalot::memory {

LossyMemory::LossyMemory(Scheduler& scheduler, const Options& options)
    : scheduler_(scheduler),
      options_(options),
      rng_(scheduler.rng().next()),
      device_(options.devices * (options.bytes_each / kLineBytes)) {
  CACHALOT_CHECK(options.devices > 0 && options.bytes_each > 0);
  CACHALOT_CHECK(options.bytes_each % kLineBytes == 0);
  const Adversary& adversary = options.adversary;
  CACHALOT_CHECK(adversary.event_every_steps > 0);
  CACHALOT_CHECK(adversary.drain_weight > 0);  // or unfenced writes never arrive
}

LossyHost& LossyMemory::add_host() {
  hosts_.push_back(std::make_unique<LossyHost>(*this));
  return *hosts_.back();
}

void LossyMemory::event() {
  until_event_ = 1 + rng_.below(2 * options_.adversary.event_every_steps);
  if (!hosts_.empty()) hosts_[rng_.below(hosts_.size())]->act_up();
}

}  // namespace cachalot::memory

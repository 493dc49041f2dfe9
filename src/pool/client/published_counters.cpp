#include "pool/client/published_counters.h"

namespace cachalot::pool {

void PublishedCounters::begin() {
  const std::lock_guard lock(mutex_);
  totals_ = SlotTotals::read(context_.access, context_.slot);
  totals_before_ = totals_.values();
  published_.emplace();
  published_->publish(context_.access.region, context_.access.layout.client_counters(context_.slot),
                      ++sequence_);
}

void PublishedCounters::publish() {
  const std::lock_guard lock(mutex_);
  if (!published_ || has_ended_) return;
  ClientCounters now = live_.read();
  if (context_.options.add_counters) context_.options.add_counters(now);
  if (published_ == now) return;
  published_ = now;
  now.publish(context_.access.region, context_.access.layout.client_counters(context_.slot),
              ++sequence_);
  now += totals_before_;
  totals_.publish(context_.access, context_.slot, now);
}

void PublishedCounters::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
}

}  // namespace cachalot::pool

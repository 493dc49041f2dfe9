// Counts for a client, and publishes: the client's own counters, and the totals of all clients of its slot.
//
// @threads  live(): one counts; publish(): any; else the client's
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "pool/client/client_options.h"
#include "pool/format/slot_totals.h"
#include "pool/format/statistics.h"

namespace cachalot::pool {

class PublishedCounters {
 public:
  explicit PublishedCounters(const ClientContext& context) : context_(context) {}

  LiveClientCounters& live() { return live_; }
  const LiveClientCounters& live() const { return live_; }

  // From here on the slot's lines are this client's. Its own counters begin with zeros, where the last client's are.
  void begin();
  bool has_begun() const { return published_.has_value(); }
  // Writes the lines, if the counters have changed.
  void publish();
  // R1: another client may count in the lines after this. This writes no more of them.
  void end();

 private:
  const ClientContext& context_;
  LiveClientCounters live_;
  std::mutex mutex_;
  // Under the lock:
  std::optional<ClientCounters> published_;  // none: the slot's lines are not this client's yet
  bool has_ended_ = false;
  std::uint32_t sequence_ = 0;
  SlotTotals totals_;
  ClientCounters totals_before_;  // of the slot's earlier clients
};

}  // namespace cachalot::pool

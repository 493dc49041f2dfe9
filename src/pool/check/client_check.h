// Checks the pages of the client slots.
//
// @threads any
#pragma once

#include "pool/check/fault.h"
#include "pool/format/access.h"
#include "pool/format/statistics.h"
#include "pool/keeper/predecessor.h"

namespace cachalot::pool {

// Calls f(offset) for each line of a page that is written again, or not needed: heartbeat, counters, totals, and what
// the agent of the host says.
template <class F>
void for_each_report_line_of_client(const Access& access, std::uint32_t client, F&& f) {
  f(access.layout.client_heartbeat(client));
  f(access.layout.departure(client));
  f(access.layout.host_line(client));
  for (std::uint32_t i = 0; i < ClientCounters::kLines; ++i) {
    f(access.layout.client_counters(client) + i * memory::kLineBytes);
    f(access.layout.client_totals(client, 0) + i * memory::kLineBytes);
    f(access.layout.client_totals(client, 1) + i * memory::kLineBytes);
  }
}

// The incarnation that the keeper of the predecessor's area admitted last to a slot; 0: none that can be read.
std::uint32_t admitted_incarnation(const Access& access, const Predecessor& predecessor,
                                   std::uint32_t client);

void check_client_pages(const Access& access, const Predecessor& predecessor, FaultLog& log);

}  // namespace cachalot::pool

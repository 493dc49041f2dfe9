#include "pool/check/client_check.h"

#include <string>

#include "pool/check/lines.h"

namespace cachalot::pool {

std::uint32_t admitted_incarnation(const Access& access, const Predecessor& predecessor,
                                   std::uint32_t client) {
  ViewLine view{};
  const std::uint64_t at = access.layout.view_line(predecessor.area, client);
  if (predecessor.epoch == 0 || !access.region.read_as(at, view)) return 0;
  return view.epoch == predecessor.epoch ? view.incarnation : 0;
}

void check_client_pages(const Access& access, const Predecessor& predecessor, FaultLog& log) {
  const Geometry& geometry = access.geometry;
  for (std::uint32_t client = 0; client < geometry.clients; ++client) {
    const std::string of = "client slot " + std::to_string(client);
    // First what the keeper says: a client counts up before the keeper admits it.
    const std::uint32_t admitted = admitted_incarnation(access, predecessor, client);
    ClientLine line{};
    const std::uint64_t at = access.layout.client_line(client);
    const LineState state = look_at_line(access, at, line);
    if (state == LineState::kDamaged)
      log.add({FaultKind::kClientLine, 0, at, kNoBlock, client, of + ": wrong CRC"});
    if (state != LineState::kDamaged && line.incarnation < admitted) {
      log.add({FaultKind::kClientContent, 0, at, kNoBlock, client,
               of + " says incarnation " + std::to_string(line.incarnation) +
                   ", the keeper has admitted " + std::to_string(admitted)});
    }
    if (state == LineState::kGood && line.host >= geometry.hosts) {
      log.add({FaultKind::kClientContent, 0, at, kNoBlock, client,
               of + " says host " + std::to_string(line.host) + ", the pool has " +
                   std::to_string(geometry.hosts)});
    }
    if (const std::uint64_t pins = access.layout.client_pins(client); is_damaged(access, pins)) {
      log.add({FaultKind::kPinLine, 0, pins, kNoBlock, client,
               "pinned reads of " + of + ": wrong CRC"});
    }
    for_each_report_line_of_client(access, client, [&](std::uint64_t report) {
      if (!is_damaged(access, report)) return;
      log.add(
          {FaultKind::kReportLine, 0, report, kNoBlock, client, "a line of " + of + ": wrong CRC"});
    });
  }
}

}  // namespace cachalot::pool

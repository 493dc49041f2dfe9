#include "pool/keeper/sessions.h"

#include <algorithm>

#include "base/fail_point.h"
#include "base/log.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

Sessions::Sessions(const Access& access, const KeeperOptions& options, const Reign& reign,
                   base::Clock& clock, Blocks& blocks, OpenChains& open_chains, rpc::Server& server,
                   KeeperCounters& counters)
    : access_(access),
      options_(options),
      reign_(reign),
      clock_(clock),
      blocks_(blocks),
      open_chains_(open_chains),
      server_(server),
      counters_(counters),
      sessions_(access.geometry.clients) {}

std::uint32_t Sessions::open_count() const {
  return static_cast<std::uint32_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [](const Session& s) { return s.incarnation != 0; }));
}

void Sessions::open(std::uint32_t client, const ClientLine& line) {
  Session& session = sessions_[client];
  session = {};
  session.incarnation = session.last_incarnation = line.incarnation;
  session.process = identity_of(line);
  session.pins = (line.flags & kClientPins) != 0;
  session.beat_seen_ns = clock_.now_ns();
  if (session.pins) blocks_.limbo().add_reader(client, line.incarnation);

  rpc::Doorbell doorbell;
  // Between machines no doorbell rings.
  const bool is_of_this_machine =
      line.boot_id_low == options_.boot_id_low && line.boot_id_high == options_.boot_id_high;
  if (options_.use_doorbells && is_of_this_machine) {
    doorbell = rpc::Doorbell::at(access_.region.at(access_.layout.client_doorbell(client)));
  }
  open_mailbox(client, line, doorbell);
  base::log(base::LogLevel::kInfo, "keeper", "client %u attached: pid %u, incarnation %u", client,
            line.pid, line.incarnation);

  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) return echo_heartbeat(client);
  publish_view(client);
  base::reach(FailPoint::kSessionOpened);
  doorbell.ring();
}

void Sessions::open_mailbox(std::uint32_t client, const ClientLine& line, rpc::Doorbell doorbell) {
  rpc::MailboxPlace place;
  place.request_ring = access_.layout.request_ring(client);
  place.response_ring = access_.layout.response_ring(reign_.area(), client);
  place.ring_lines = kRingLines;
  place.incarnation = line.incarnation;
  place.epoch = reign_.epoch();
  place.client_splits_lines = (line.flags & kClientSplitLines) != 0;
  server_.open(client, place, doorbell);
}

// What rule R1 forbids, for the test that breaks it: the echo goes into the client's own line.
void Sessions::echo_heartbeat(std::uint32_t client) {
  const std::uint64_t offset = access_.layout.client_heartbeat(client);
  HeartbeatLine line{};
  access_.region.read_as(offset, line);
  line.echo_incarnation = sessions_[client].incarnation;
  line.echo_epoch = reign_.epoch();
  access_.region.publish(offset, line);
}

void Sessions::close(std::uint32_t client, bool is_drained, const char* why) {
  Session& session = sessions_[client];
  server_.close(client);
  const std::uint32_t blocks =
      session.granted == 0 ? 0 : blocks_.end_grants(client, session.incarnation, is_drained);
  open_chains_.forget_client(client);
  session.incarnation = 0;
  session.granted = 0;
  session.is_held = !is_drained && (blocks != 0 || session.pins);
  if (!session.is_held) end_pins(client);
  base::log(base::LogLevel::kInfo, "keeper", "client %u %s: %u blocks %s", client, why, blocks,
            is_drained ? "free" : "quarantined");
  publish_view(client);
}

void Sessions::suspect(std::uint32_t client) {
  ++counters_[KeeperCounter::kSuspicions];
  sessions_[client].is_suspected = true;
  close(client, false, "is silent");
  base::reach(FailPoint::kSuspected);
}

// No cache has to be flushed for that: nothing dirty stays behind the client's stores (R2).
std::uint32_t Sessions::release(std::uint32_t client) {
  const std::uint32_t released = blocks_.release(client, client + 1);
  Session& session = sessions_[client];
  session.is_held = session.may_hold_unknown = false;
  end_pins(client);
  counters_[KeeperCounter::kReleasedBlocks] += released;
  base::log(base::LogLevel::kInfo, "keeper", "client %u: %u blocks released", client, released);
  publish_view(client);
  base::reach(FailPoint::kReleased);
  return released;
}

void Sessions::end(std::uint32_t client, const char* why) {
  Session& session = sessions_[client];
  if (session.incarnation != 0) close(client, true, why);
  if (session.is_held) release(client);
  if (session.is_suspected) {
    session.is_suspected = false;
    publish_view(client);
  }
  forget_reads(client);
}

void Sessions::refuse(std::uint32_t client, std::uint32_t incarnation) {
  if (sessions_[client].refused == incarnation) return;
  sessions_[client].refused = incarnation;
  publish_view(client);
}

void Sessions::note_beat(std::uint32_t client, std::uint64_t beat, std::uint64_t now_ns) {
  sessions_[client].last_beat = beat;
  sessions_[client].beat_seen_ns = now_ns;
  publish_view(client);
}

std::uint32_t Sessions::release_unknown() {
  unknown_blocks_ = 0;
  const std::uint32_t released = blocks_.release(slots(), kUnknownHolder + 1u);
  counters_[KeeperCounter::kReleasedBlocks] += released;
  return released;
}

void Sessions::release_unknown_if_proved() {
  if (unknown_blocks_ == 0 || is_holder_lost_) return;
  const bool may_any_hold =
      std::any_of(sessions_.begin(), sessions_.end(),
                  [](const Session& session) { return session.may_hold_unknown; });
  if (!may_any_hold) release_unknown();
}

void Sessions::adopt(std::uint32_t client, const Session& session) {
  sessions_[client] = session;
  if (session.pins) blocks_.limbo().add_reader(client, session.last_incarnation);
}

void Sessions::adopt_unknown(std::uint32_t blocks, bool is_holder_lost) {
  unknown_blocks_ = blocks;
  is_holder_lost_ = is_holder_lost;
}

void Sessions::publish_views() {
  for (std::uint32_t client = 0; client < slots(); ++client) {
    if (sessions_[client].last_incarnation != 0) publish_view(client);
  }
}

void Sessions::close_mailboxes() {
  for (std::uint32_t client = 0; client < slots(); ++client) server_.close(client);
}

void Sessions::end_pins(std::uint32_t client) {
  if (!sessions_[client].pins) return;
  sessions_[client].pins = false;
  blocks_.limbo().remove_reader(client);
}

void Sessions::publish_view(std::uint32_t client) {
  const Session& session = sessions_[client];
  ViewLine view{};
  view.incarnation = session.last_incarnation;
  view.epoch = reign_.epoch();
  view.heartbeat = static_cast<std::uint32_t>(session.last_beat);
  view.flags = (session.incarnation != 0 ? kViewOpen : 0) | (session.is_held ? kViewHeld : 0) |
               (session.pins ? kViewPins : 0) | (session.is_suspected ? kViewSuspected : 0);
  view.host = session.process.host;
  view.pid = session.process.pid;
  view.pid_namespace = session.process.pid_namespace;
  view.time_namespace = session.process.time_namespace;
  view.start_time = session.process.start_time;
  view.boot_id_low = session.process.boot_id_low;
  view.boot_id_high = session.process.boot_id_high;
  view.refused = session.refused;
  access_.region.publish(access_.layout.view_line(reign_.area(), client), view);
  access_.domain().order();
}

}  // namespace cachalot::pool

// Clients come and go: the client table, seen by the keeper.

#include <algorithm>

#include "base/log.h"
#include "pool/keeper.h"

namespace cachalot::pool {

using memory::Line;
using memory::Rule;

// Reads the line of every client slot, overlapped, and opens a mailbox for who is new.
void Keeper::look_after_clients() {
  constexpr std::uint32_t kBatch = 64;
  Line lines[kBatch];
  const void* addresses[kBatch];
  const auto clients = static_cast<std::uint32_t>(sessions_.size());
  for (std::uint32_t first = 0; first < clients; first += kBatch) {
    const std::uint32_t count = std::min(kBatch, clients - first);
    for (std::uint32_t i = 0; i < count; ++i) {
      addresses[i] = access_.region.at(access_.layout.client_line(first + i));
    }
    access_.domain().gather_lines(addresses, count, lines);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t client = first + i;
      if (!access_.region.checks(lines[i], access_.layout.client_line(client))) continue;
      const auto line = memory::as<ClientLine>(lines[i]);
      const bool is_new = line.incarnation != sessions_[client].last_incarnation && line.incarnation != 0;
      if (is_new && (line.flags & kClientAttached) != 0 && line.epoch == epoch_) {
        open_session(client, line);
      }
    }
  }
}

void Keeper::open_session(std::uint32_t client, const ClientLine& line) {
  // Whoever had the slot before did not say goodbye: nothing proves that it stores no more.
  if (sessions_[client].incarnation != 0) close_session(client, false);
  sessions_[client] = {};
  sessions_[client].incarnation = sessions_[client].last_incarnation = line.incarnation;

  rpc::MailboxPlace place;
  place.request_ring = access_.layout.request_ring(client);
  place.response_ring = access_.layout.response_ring(slot_, client);
  place.ring_lines = kRingLines;
  place.incarnation = line.incarnation;
  place.epoch = epoch_;
  place.client_splits_lines = (line.flags & kClientSplitLines) != 0;
  rpc::Doorbell doorbell;
  if (options_.use_doorbells) {
    doorbell = rpc::Doorbell(reinterpret_cast<std::atomic<std::uint32_t>*>(
        access_.region.at(access_.layout.client_doorbell(client))));
  }
  server_.open(client, place, doorbell);
  base::log(base::LogLevel::kInfo, "keeper", "client %u attached: pid %u, incarnation %u", client,
            line.pid, line.incarnation);

  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) return echo_heartbeat(client);
  ViewLine view{};
  view.incarnation = line.incarnation;
  view.epoch = epoch_;
  access_.region.publish(access_.layout.view_line(slot_, client), view);
  access_.domain().order();
  doorbell.ring();
}

// What rule R1 forbids, for the test that breaks it: the echo goes into the client's own line.
void Keeper::echo_heartbeat(std::uint32_t client) {
  const std::uint64_t offset = access_.layout.client_heartbeat(client);
  HeartbeatLine line{};
  access_.region.read_as(offset, line);
  line.echo_incarnation = sessions_[client].incarnation;
  line.echo_epoch = epoch_;
  access_.region.publish(offset, line);
}

// @param holds_nothing_more  the client said itself that it has stopped storing
void Keeper::close_session(std::uint32_t client, bool holds_nothing_more) {
  Session& session = sessions_[client];
  server_.close(client);
  if (session.granted != 0) {
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
      const BlockTable::Record& record = blocks_.record(block);
      if (blocks_.use(block).state != BlockState::kGranted || record.holder != client ||
          record.incarnation != session.incarnation) {
        continue;
      }
      if (holds_nothing_more) {
        free_block(block);
      } else {
        blocks_.set_state(block, BlockState::kQuarantined);
        ledger_.touch(block);
      }
    }
    ledger_.flush();
    access_.domain().order();
  }
  base::log(base::LogLevel::kInfo, "keeper", "client %u %s", client,
            holds_nothing_more ? "detached" : "was replaced; its blocks are quarantined");
  const std::uint32_t last = session.last_incarnation;
  session = {};
  session.last_incarnation = last;
}

}  // namespace cachalot::pool

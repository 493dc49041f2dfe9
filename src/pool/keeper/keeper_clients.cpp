// Clients come and go, and fall silent: the client table, seen by the keeper.

#include <algorithm>

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/keeper/keeper.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Line;
using memory::Rule;

// Reads the line of every client slot, overlapped, and admits new clients.
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
      notice_farewell(client, line);
      const bool is_new =
          line.incarnation != sessions_[client].last_incarnation && line.incarnation != 0;
      if (is_new && (line.flags & kClientAttached) != 0 && line.epoch == epoch_) {
        let_in(client, line);
      }
    }
  }
}

// A client that detached without an answer, because no keeper served or it was suspected, says so in its line.
void Keeper::notice_farewell(std::uint32_t client, const ClientLine& line) {
  const Session& session = sessions_[client];
  const bool is_known = session.incarnation != 0 || session.is_held || session.is_suspected;
  if (!is_known || (line.flags & kClientAttached) != 0 || !vouches(session, line)) return;
  if (session.incarnation != 0) close_session(client, true, "left");
  if (session.is_held) release(client);
  if (session.is_suspected) forget_suspect(client);
  limbo_.forget(client);
}

// The process of the last incarnation says that this incarnation stores no more.
bool Keeper::vouches(const Session& session, const ClientLine& line) const {
  return session.process.pid != 0 && session.process == identity_of(line) &&
         line.drained >= session.last_incarnation && line.drained <= line.incarnation;
}

// A new incarnation asks to attach. The slot's previous client comes first: its blocks are free if there is
// evidence that it stores no more, and otherwise no client gets the slot. So at most one incarnation's
// grants are held per slot, however often its processes crash.
void Keeper::let_in(std::uint32_t client, const ClientLine& line) {
  Session& session = sessions_[client];
  if (session.incarnation != 0 || session.is_held) {
    const bool is_same_process = vouches(session, line);
    const bool is_drained = is_same_process || has_exited(session.process) ||
                            access_.domain().broken(Rule::kReleaseOnReattach);
    if (session.incarnation != 0) close_session(client, is_drained, "was replaced");
    if (session.is_held && is_drained) release(client);
    if (session.is_held) {
      if (session.refused == line.incarnation) return;
      session.refused = line.incarnation;
      return publish_view(client);
    }
    // Its pinned reads go on if it is the same process; else they ended with it.
    if (!is_same_process) limbo_.forget(client);
  }
  open_session(client, line);
}

void Keeper::open_session(std::uint32_t client, const ClientLine& line) {
  Session& session = sessions_[client];
  session = {};
  session.incarnation = session.last_incarnation = line.incarnation;
  session.process = identity_of(line);
  session.pins = (line.flags & kClientPins) != 0;
  session.beat_seen_ns = clock_->now_ns();
  pinning_clients_ += session.pins;

  rpc::MailboxPlace place;
  place.request_ring = access_.layout.request_ring(client);
  place.response_ring = access_.layout.response_ring(slot_, client);
  place.ring_lines = kRingLines;
  place.incarnation = line.incarnation;
  place.epoch = epoch_;
  place.client_splits_lines = (line.flags & kClientSplitLines) != 0;
  rpc::Doorbell doorbell;
  if (options_.use_doorbells) {
    doorbell = rpc::Doorbell::at(access_.region.at(access_.layout.client_doorbell(client)));
  }
  server_.open(client, place, doorbell);
  base::log(base::LogLevel::kInfo, "keeper", "client %u attached: pid %u, incarnation %u", client,
            line.pid, line.incarnation);

  if (access_.domain().broken(Rule::kR1OneWriterPerLine)) return echo_heartbeat(client);
  publish_view(client);
  base::reach(FailPoint::kSessionOpened);
  doorbell.ring();
}

// What the keeper says of a slot: to the client, and to a successor.
void Keeper::publish_view(std::uint32_t client) {
  const Session& session = sessions_[client];
  ViewLine view{};
  view.incarnation = session.last_incarnation;
  view.epoch = epoch_;
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
  access_.region.publish(access_.layout.view_line(slot_, client), view);
  access_.domain().order();
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

// @param is_drained  there is evidence that the client has stopped storing
void Keeper::close_session(std::uint32_t client, bool is_drained, const char* why) {
  Session& session = sessions_[client];
  server_.close(client);
  std::uint32_t blocks = 0;
  if (session.granted != 0) {
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
      const BlockTable::Record& record = blocks_.record(block);
      if (blocks_.use(block).state != BlockState::kGranted || record.holder != client ||
          record.incarnation != session.incarnation) {
        continue;
      }
      ++blocks;
      if (is_drained) {
        free_unpinned(block);
      } else {
        blocks_.set_state(block, BlockState::kQuarantined);
        ledger_.touch(block);
      }
    }
    ledger_.flush();
    access_.domain().order();
  }
  open_chains_.forget_client(client);
  session.incarnation = 0;
  session.granted = 0;
  session.is_held = !is_drained && (blocks != 0 || session.pins);
  if (!session.is_held && session.pins) {
    session.pins = false;
    --pinning_clients_;
  }
  base::log(base::LogLevel::kInfo, "keeper", "client %u %s: %u blocks %s", client, why, blocks,
            is_drained ? "free" : "quarantined");
  publish_view(client);
}

// Looks at processes and heartbeats. Silence makes a suspect; only evidence frees what it holds.
void Keeper::watch_clients(std::uint64_t now_ns) {
  if (unknown_blocks_ != 0 && !may_anybody_hold_unknown()) release_unknown();
  access_.domain().order();  // answers before the echoes that say that mailboxes were read
  for (std::uint32_t client = 0; client < sessions_.size(); ++client) {
    Session& session = sessions_[client];
    if (session.incarnation == 0 && !session.is_held && !session.is_suspected) continue;
    if (has_exited(session.process)) {
      if (session.incarnation != 0) close_session(client, true, "has exited");
      if (session.is_held) release(client);
      if (session.is_suspected) forget_suspect(client);
      limbo_.forget(client);
      continue;
    }
    if (session.incarnation == 0) continue;
    HeartbeatLine line{};
    if (access_.region.read_as(access_.layout.client_heartbeat(client), line) &&
        line.incarnation == session.incarnation && line.beat != session.last_beat) {
      session.last_beat = line.beat;
      session.beat_seen_ns = now_ns;
      publish_view(client);
    } else if (options_.suspect_after_ns != 0 &&
               now_ns - session.beat_seen_ns > options_.suspect_after_ns) {
      ++counters_[KeeperCounter::kSuspicions];
      session.is_suspected = true;
      close_session(client, false, "is silent");
      base::reach(FailPoint::kSuspected);
    }
  }
}

// A suspect that has left, or whose process has: there is no client to look after.
void Keeper::forget_suspect(std::uint32_t client) {
  sessions_[client].is_suspected = false;
  publish_view(client);
}

bool Keeper::may_anybody_hold_unknown() const {
  return is_holder_lost_ || std::any_of(sessions_.begin(), sessions_.end(),
                                        [](const Session& s) { return s.may_hold_unknown; });
}

// A pool of one host has all its processes on the keeper's machine: one of another boot is gone.
bool Keeper::has_exited(const ProcessIdentity& process) const {
  if (process.pid == 0) return false;  // the process is unknown
  const bool is_other_boot =
      process.boot_id_low != options_.boot_id_low || process.boot_id_high != options_.boot_id_high;
  if (is_other_boot && access_.geometry.hosts == 1 && options_.pid != 0) return true;
  return evidence_ != nullptr && evidence_->has_exited(process);
}

// There is evidence that the last incarnation of this slot stores no more: what it held is free.
// No cache has to be flushed for that: nothing dirty stays behind its stores (R2).
std::uint32_t Keeper::release(std::uint32_t client) {
  Session& session = sessions_[client];
  std::uint32_t released = 0;
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_.use(block).state != BlockState::kQuarantined ||
        blocks_.record(block).holder != client) {
      continue;
    }
    free_unpinned(block);
    ++released;
  }
  ledger_.flush();
  access_.domain().order();
  session.is_held = session.may_hold_unknown = false;
  if (session.pins) {
    session.pins = false;
    --pinning_clients_;
  }
  counters_[KeeperCounter::kReleasedBlocks] += released;
  base::log(base::LogLevel::kInfo, "keeper", "client %u: %u blocks released", client, released);
  publish_view(client);
  base::reach(FailPoint::kReleased);
  return released;
}

// Blocks whose ledger line could not be read: an operator says that no client stores into them, or all that
// might have proved it.
std::uint32_t Keeper::release_unknown() {
  unknown_blocks_ = 0;
  std::uint32_t released = 0;
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_.use(block).state != BlockState::kQuarantined) continue;
    if (blocks_.record(block).holder < sessions_.size()) continue;
    free_unpinned(block);
    ++released;
  }
  ledger_.flush();
  access_.domain().order();
  counters_[KeeperCounter::kReleasedBlocks] += released;
  return released;
}

void Keeper::serve_fence(std::uint32_t client, const rpc::RequestHead& head) {
  const auto wanted = rpc::load_payload<FencePayload>(head.payload);
  const auto answer_with = [&](std::uint32_t released) {
    const FenceAnswer answer{released};
    unsigned char payload[sizeof answer];
    std::memcpy(payload, &answer, sizeof answer);
    server_.answer(client, 0, 1, payload, {});
  };
  if (wanted.client == kAllUnknown) return answer_with(release_unknown());
  if (wanted.client >= sessions_.size()) {
    return refuse(client, Code::kInvalidArgument);
  }
  const Session& session = sessions_[wanted.client];
  // A served client is alive; fencing it would hand its blocks to others while it stores.
  if (session.incarnation != 0) return refuse(client, Code::kBusy);
  if (!session.is_held) return refuse(client, Code::kNotFound);
  answer_with(release(wanted.client));
  if (session.is_suspected) forget_suspect(wanted.client);
  limbo_.forget(wanted.client);
}

// A keeper that slept for long may wake up under another keeper. Until it looks, it can write
// lines that do not count (their epoch is void) and that the ruling keeper's scrubbing repairs.
bool Keeper::notice_successor() {
  if (!serving_ || !has_successor()) return false;
  be_deposed();
  return true;
}

bool Keeper::has_successor() const {
  return DirectoryReader(access_).read_keepers().epoch > epoch_;
}

void Keeper::be_deposed() {
  deposed_ = true;
  for (std::uint32_t client = 0; client < sessions_.size(); ++client) server_.close(client);
  base::log(base::LogLevel::kError, "keeper",
            "epoch %u is over: another keeper rules with epoch %u", epoch_,
            DirectoryReader(access_).read_keepers().epoch);
}

}  // namespace cachalot::pool

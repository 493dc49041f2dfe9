#include "pool/keeper/service/client_watch.h"

#include <algorithm>

#include "pool/format/departures.h"

namespace cachalot::pool {

using memory::Line;
using memory::Rule;

namespace {

// A slot with a client of this keeper or of one before, which may still be there.
bool is_in_use(const Session& session) {
  return session.incarnation != 0 || session.is_held || session.is_suspected;
}

// The process of the last incarnation says that this incarnation stores no more.
bool vouches(const Session& session, const ClientLine& line) {
  return session.process.pid != 0 && session.process == identity_of(line) &&
         line.drained >= session.last_incarnation && line.drained <= line.incarnation;
}

}  // namespace

void ClientWatch::look() {
  read_table();
  const std::uint64_t now_ns = clock_.now_ns();
  if (now_ns < next_watch_ns_) return;
  next_watch_ns_ = now_ns + options_.watch_interval_ns;
  watch_processes(now_ns);
}

// Reads the line of every client slot, overlapped, and admits new clients.
void ClientWatch::read_table() {
  constexpr std::uint32_t kBatch = 64;
  Line lines[kBatch];
  const void* addresses[kBatch];
  for (std::uint32_t first = 0; first < sessions_.slots(); first += kBatch) {
    const std::uint32_t count = std::min(kBatch, sessions_.slots() - first);
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
      if (is_new && (line.flags & kClientAttached) != 0 && line.epoch == reign_.epoch()) {
        let_in(client, line);
      }
    }
  }
}

// A client that detached without an answer, because no keeper served or it was suspected, says so in its line.
void ClientWatch::notice_farewell(std::uint32_t client, const ClientLine& line) {
  const Session& session = sessions_[client];
  if (!is_in_use(session) || (line.flags & kClientAttached) != 0 || !vouches(session, line)) return;
  sessions_.end(client, "left");
}

// A new incarnation asks to attach. The slot's previous client comes first: its blocks are free if there is
// evidence that it stores no more, and otherwise no client gets the slot. So at most one incarnation's
// grants are held per slot, however often its processes crash.
void ClientWatch::let_in(std::uint32_t client, const ClientLine& line) {
  const Session& session = sessions_[client];
  if (session.incarnation != 0 || session.is_held) {
    const bool is_same_process = vouches(session, line);
    const bool is_drained =
        is_same_process || has_exited(client) || access_.domain().broken(Rule::kReleaseOnReattach);
    if (session.incarnation != 0) sessions_.close(client, is_drained, "was replaced");
    if (session.is_held && is_drained) sessions_.release(client);
    if (session.is_held) return sessions_.refuse(client, line.incarnation);
    // Its pinned reads go on if it is the same process; else they ended with it.
    if (!is_same_process) sessions_.forget_reads(client);
  }
  sessions_.open(client, line);
}

void ClientWatch::watch_processes(std::uint64_t now_ns) {
  sessions_.release_unknown_if_proved();
  access_.domain().order();  // answers before the echoes that say that mailboxes were read
  for (std::uint32_t client = 0; client < sessions_.slots(); ++client) {
    const Session& session = sessions_[client];
    if (!is_in_use(session)) continue;
    if (has_exited(client)) {
      sessions_.end(client, "has exited");
      continue;
    }
    if (session.incarnation == 0) continue;
    HeartbeatLine line{};
    if (access_.region.read_as(access_.layout.client_heartbeat(client), line) &&
        line.incarnation == session.incarnation && line.beat != session.last_beat) {
      sessions_.note_beat(client, line.beat, now_ns);
    } else if (options_.suspect_after_ns != 0 &&
               now_ns - session.beat_seen_ns > options_.suspect_after_ns) {
      sessions_.suspect(client);
    }
  }
}

// A pool of one host has all its processes on the keeper's machine: one of another boot is gone.
bool ClientWatch::has_exited(std::uint32_t client) const {
  const ProcessIdentity& process = sessions_[client].process;
  if (process.pid == 0) return false;  // the process is unknown
  const bool is_other_boot =
      process.boot_id_low != options_.boot_id_low || process.boot_id_high != options_.boot_id_high;
  if (is_other_boot && access_.geometry.hosts == 1 && options_.pid != 0) return true;
  if (evidence_ != nullptr && evidence_->has_exited(process)) return true;
  return access_.geometry.hosts > 1 && is_departed(access_, client, process);
}

}  // namespace cachalot::pool

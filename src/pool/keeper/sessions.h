// What the keeper knows of each client slot: which incarnation it serves there, what that one holds, and
// whether the slot is held by a client of before.
//
//     empty --open--> open --close, drained--> empty
//                       \---close, not drained, with grants or pins--> held --release--> empty
//     A silent client is closed as a suspect, held or not, until it leaves or exits.
//
// Each change is published in the slot's view, for the client and for a successor.
//
// Invariants
//   1. A slot has grants of one incarnation at most, open or held.
//   2. A slot's pins count from open() until it is empty again.
//
// @threads  one
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "pool/format/evidence.h"
#include "pool/format/statistics.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/open_chains.h"
#include "pool/keeper/reign.h"
#include "rpc/server.h"

namespace cachalot::pool {

struct Session {
  std::uint32_t incarnation = 0;       // 0: none
  std::uint32_t last_incarnation = 0;  // never opened again: its old requests would be read anew
  std::uint32_t granted = 0;           // blocks
  std::uint32_t refused = 0;           // an incarnation that was told that the slot is held
  bool is_held = false;           // not open, and nothing proves that the last one stores no more
  bool is_suspected = false;      // not open, because the last one fell silent; it may live
  bool may_hold_unknown = false;  // it was let in by the last keeper, whose ledger is damaged
  bool pins = false;              // the last one may have reads in flight that keep blocks in limbo
  ProcessIdentity process;        // of the last incarnation
  std::uint64_t last_beat = 0;
  std::uint64_t beat_seen_ns = 0;  // when it was new
};

class Sessions {
 public:
  Sessions(const Access& access, const KeeperOptions& options, const Reign& reign,
           base::Clock& clock, Blocks& blocks, OpenChains& open_chains, rpc::Server& server,
           KeeperCounters& counters);

  std::uint32_t slots() const { return static_cast<std::uint32_t>(sessions_.size()); }
  const Session& operator[](std::uint32_t client) const { return sessions_[client]; }
  std::uint32_t open_count() const;

  // Admits the incarnation in `line`. The slot must be neither open nor held.
  void open(std::uint32_t client, const ClientLine& line);
  // Serves an open slot no more.
  // @param is_drained  there is evidence that the client has stopped storing
  void close(std::uint32_t client, bool is_drained, const char* why);
  // Closes an open slot whose client is silent: what it holds is quarantined.
  void suspect(std::uint32_t client);
  // There is evidence that the slot's last incarnation stores no more: what it held is free.
  // @return blocks
  std::uint32_t release(std::uint32_t client);
  // There is evidence that its process neither stores nor reads any more.
  void end(std::uint32_t client, const char* why);
  // Pinned reads of the slot's last process have ended.
  void forget_reads(std::uint32_t client) { blocks_.limbo().forget(client); }
  // Tells an incarnation, once, that the slot is held.
  void refuse(std::uint32_t client, std::uint32_t incarnation);
  // The client's heartbeat has changed.
  void note_beat(std::uint32_t client, std::uint64_t beat, std::uint64_t now_ns);

  // Blocks that an open slot's client holds.
  bool holds(std::uint32_t client, const BlockUse& use) const {
    return blocks_.holds(client, sessions_[client].incarnation, use);
  }
  void add_granted(std::uint32_t client, std::uint32_t blocks) {
    sessions_[client].granted += blocks;
  }
  void drop_granted(std::uint32_t client) { --sessions_[client].granted; }

  // Frees the blocks whose ledger line could not be read: an operator says that no client stores into them.
  // @return blocks
  std::uint32_t release_unknown();
  // Does so if all clients that might hold them have proved that they store no more.
  void release_unknown_if_proved();

  // For a takeover: what the predecessor's lines say of a slot, and how many quarantined blocks have an
  // unknown holder. `is_holder_lost`: the possible holders are unknown, too.
  void adopt(std::uint32_t client, const Session& session);
  void adopt_unknown(std::uint32_t blocks, bool is_holder_lost);
  void publish_views();

  void close_mailboxes();

 private:
  void end_pins(std::uint32_t client);
  void publish_view(std::uint32_t client);
  void echo_heartbeat(std::uint32_t client);
  void open_mailbox(std::uint32_t client, const ClientLine& line, rpc::Doorbell doorbell);

  const Access& access_;
  const KeeperOptions& options_;
  const Reign& reign_;
  base::Clock& clock_;
  Blocks& blocks_;
  OpenChains& open_chains_;
  rpc::Server& server_;
  KeeperCounters& counters_;
  std::vector<Session> sessions_;
  std::uint32_t unknown_blocks_ = 0;  // quarantined, their holder unknown
  bool is_holder_lost_ = false;       // … and the possible holders are unknown, too
};

}  // namespace cachalot::pool

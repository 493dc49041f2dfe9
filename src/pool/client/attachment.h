// Whether a client is attached: how it enters, attaches again to the next keeper, and detaches.
//
// An attachment is lost when another keeper rules, when the keeper has released this client, or when the
// mailbox is damaged. ensure() attaches again then, with a new incarnation, and asks the ruling keeper what
// became of the commits without an answer (W5). A new incarnation vouches that the old one is drained, so that
// what it held is free at once. So this waits until no reservation is open, and refuses for good if one is
// withheld.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "pool/client/attach_handshake.h"
#include "pool/client/call_time.h"
#include "pool/client/client_namespace.h"
#include "pool/client/client_options.h"
#include "pool/client/commits_in_flight.h"
#include "pool/client/granted_blocks.h"
#include "pool/client/heartbeat.h"
#include "pool/client/hit_reports.h"
#include "pool/client/keeper_calls.h"
#include "pool/client/keeper_watch.h"
#include "pool/client/pins.h"
#include "pool/client/published_counters.h"

namespace cachalot::pool {

class Attachment {
 public:
  // All of them outlive this.
  Attachment(const ClientContext& context, CallTime& time, KeeperWatch& keeper,
             Heartbeat& heartbeat, KeeperCalls& calls, ClientNamespace& name_space,
             HitReports& reports, GrantedBlocks& grants, CommitsInFlight& commits,
             PublishedCounters& counters);

  // The first time. If the mailbox is damaged meanwhile, attaches again.
  Status enter();
  // Attaches again, if the attachment is lost. Waits up to recovery_ns for a keeper.
  Status ensure() {
    if (is_detached_) return has_detached();
    return is_attached_ && !is_lost() ? Status() : reattach(context_.options.recovery_ns);
  }
  Status reattach(std::uint64_t patience_ns);
  Status detach();

  bool is_attached() const { return is_attached_; }
  bool is_lost() const { return heartbeat_.is_lost(); }
  // It has detached, answered or not: the slot's lines may have another writer.
  bool has_left() const { return heartbeat_.has_ended(); }
  static Error has_detached();

  // Of the last attach request.
  std::uint32_t incarnation() const { return handshake_.incarnation(); }
  Pins& pins() { return pins_; }

 private:
  Status wait_for_copies(std::uint64_t until_ns);
  Status greet();
  Status attach_again();
  Status say_goodbye();
  void leave();
  std::uint64_t farewell_ends_ns() const;

  const ClientContext& context_;
  CallTime& time_;
  KeeperWatch& keeper_;
  Heartbeat& heartbeat_;
  KeeperCalls& calls_;
  ClientNamespace& namespace_;
  HitReports& reports_;
  GrantedBlocks& grants_;
  CommitsInFlight& commits_;
  PublishedCounters& counters_;
  Pins pins_;
  AttachHandshake handshake_;
  bool is_attached_ = false;
  bool is_detached_ = false;  // by detach(): for good
  bool is_let_in_ =
      false;  // the keeper has opened the mailbox; a call may leave the rest to the next one
};

}  // namespace cachalot::pool

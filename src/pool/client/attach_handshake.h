// How a client enters a slot: it writes an attach request into the slot's line, and waits until the keeper
// has opened the slot's mailbox for it.
//
// Each request is a new incarnation. It vouches that the one before, of this object, is drained: no copy of it
// into the pool is in flight. Call run() only while that is true.
//
// A request that was not answered in time stays in the line. The next run() waits for the same answer.
//
// @threads one
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "pool/client/call_time.h"
#include "pool/client/client_options.h"
#include "pool/client/heartbeat.h"
#include "pool/client/keeper_watch.h"
#include "pool/client/pins.h"

namespace cachalot::pool {

class AttachHandshake {
 public:
  // All of them outlive this.
  AttachHandshake(const ClientContext& context, const CallTime& time, KeeperWatch& keeper,
                  Heartbeat& heartbeat, Pins& pins)
      : context_(context), time_(time), keeper_(keeper), heartbeat_(heartbeat), pins_(pins) {}

  // Enters under the ruling keeper. On success the heartbeat is renewed.
  // @errors kNoKeeper; kBusy: the keeper holds the slot; kTimeout: the caller's deadline
  Status run();
  // The last one; 0: none.
  std::uint32_t incarnation() const { return incarnation_; }

  // Ends the incarnation in the slot's line.
  void withdraw();
  // Waits until the keeper has released the incarnation. @return false: not by then
  bool await_release(std::uint64_t until_ns) const;

 private:
  Status wait_for_answer(std::uint64_t begun_ns);
  void write_request();
  bool is_own_process(const ClientLine& line) const;
  bool has_unread_farewell() const;
  Status wait_for_farewell(std::uint64_t until_ns) const;
  Status wait_for_mailbox(std::uint64_t until_ns);
  Error too_late(std::uint64_t until_ns) const;
  bool is_acknowledged() const;
  bool is_released() const;

  const ClientContext& context_;
  const CallTime& time_;
  KeeperWatch& keeper_;
  Heartbeat& heartbeat_;
  Pins& pins_;
  std::uint32_t incarnation_ = 0;
  std::uint64_t requested_ns_ = 0;  // since when a request is in the line, unanswered; 0: none is
};

}  // namespace cachalot::pool

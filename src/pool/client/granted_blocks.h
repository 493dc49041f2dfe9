// Blocks that the keeper has granted to a client in advance, and those that its reservations gave back.
//
// Invariant: what take() returns was granted by a keeper that still ruled when the first block of the grant
// was taken (W1), and lies in memory that this process has mapped. The grants of another keeper are void.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "pool/client/client_namespace.h"
#include "pool/client/client_options.h"
#include "pool/client/heartbeat.h"
#include "pool/client/hit_reports.h"
#include "pool/client/keeper_calls.h"
#include "pool/client/keeper_watch.h"
#include "pool/client/reservation.h"

namespace cachalot::pool {

class GrantedBlocks final : public rpc::AnswerSink {
 public:
  // All of them outlive this.
  GrantedBlocks(const ClientContext& context, const KeeperWatch& keeper, Heartbeat& heartbeat,
                KeeperCalls& calls, const ClientNamespace& name_space, HitReports& reports);

  // Blocks that this client holds in advance at the most: what was asked for, but no more than its share of the spare
  // blocks, so that unused grants take nothing of the pool's capacity.
  std::uint32_t advance() const { return advance_; }
  std::uint32_t held() const {
    return static_cast<std::uint32_t>(held_.size() + inaccessible_.size() +
                                      reservations_->returned());
  }
  bool none_ready() const { return held_.empty(); }

  // Asks for blocks early, so that later calls need not wait, and waits for the keeper only if none is ready.
  // The keeper may have none.
  // @param needed  by the caller, in all
  // @errors kTimeout, kNoKeeper
  Status await(std::uint32_t needed) {
    return held_.size() > few_for(needed) ? Status() : ask_and_wait(needed);
  }
  // @errors kNoSpace; kNoKeeper: another keeper rules
  Result<BlockUse> take() {
    if (held_.empty() || is_unchecked_) CACHALOT_TRY(check_held());
    const BlockUse use = held_.front();
    held_.pop_front();
    return use;
  }
  // Blocks that were taken, and are not committed. This thread, or one that has ordered its stores, may have stored into
  // them. No such store may reach the pool after the keeper was told that the block is returned (R4).
  void put_back(std::span<const BlockUse> uses) {
    if (uses.empty()) return;
    context_.access.domain().order();
    held_.insert(held_.end(), uses.begin(), uses.end());
  }
  // W3: the keeper gave this use back with the verdict on a commit.
  void add_returned(const BlockUse& use) {
    held_.push_back(use);
    is_unchecked_ = true;
  }
  // Returns what lies on devices that a growable pool gives up, or that this process cannot map. Does not wait.
  void return_inaccessible();
  // All are void under the next incarnation, under any keeper; the keeper knows what they were.
  void clear();

  // Shared: a reservation may be dropped after the client is gone.
  const std::shared_ptr<ReservationBook>& reservations() const { return reservations_; }

 private:
  static constexpr std::uint32_t kMostGrants =
      kUsesInResponse + (rpc::kMaxMessageLines - 1) * kUsesInFollowing;

  void on_answer(const rpc::Answer& answer) override;
  std::size_t few_for(std::uint32_t needed) const { return std::max(advance_ / 2, needed - 1); }
  Status ask_and_wait(std::uint32_t needed);
  Status check_held();
  void ask(std::uint32_t needed);
  void post_inaccessible();

  const ClientContext& context_;
  const KeeperWatch& keeper_;
  Heartbeat& heartbeat_;
  KeeperCalls& calls_;
  const ClientNamespace& namespace_;
  HitReports& reports_;
  const std::shared_ptr<ReservationBook> reservations_ = std::make_shared<ReservationBook>();
  const std::uint32_t advance_;
  std::deque<BlockUse> held_;
  // Not to be used; kept until the keeper can be told that they are returned.
  std::vector<BlockUse> inaccessible_;
  bool is_asked_ = false;  // at most one request is in flight
  std::uint16_t status_ = 0;
  bool is_unchecked_ = false;  // the keeper lines must be read again before a block is taken
};

}  // namespace cachalot::pool

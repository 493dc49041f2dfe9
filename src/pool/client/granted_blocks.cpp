#include "pool/client/granted_blocks.h"

#include <algorithm>
#include <cstring>

#include "base/fail_point.h"
#include "pool/expansion/expansion_memory.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

namespace {

std::uint32_t share_of_spare(const ClientContext& context) {
  const Geometry& geometry = context.access.geometry;
  const std::uint32_t share = (geometry.blocks - geometry.capacity_blocks) / geometry.clients;
  return std::clamp(share, 1u, std::max(1u, context.options.grant_target));
}

}  // namespace

GrantedBlocks::GrantedBlocks(const ClientContext& context, const KeeperWatch& keeper,
                             Heartbeat& heartbeat, KeeperCalls& calls,
                             const ClientNamespace& name_space, HitReports& reports)
    : context_(context),
      keeper_(keeper),
      heartbeat_(heartbeat),
      calls_(calls),
      namespace_(name_space),
      reports_(reports),
      advance_(share_of_spare(context)) {}

// Asks for the blocks that the caller is short of, and so many more that the next puts need not wait.
void GrantedBlocks::ask(std::uint32_t needed) {
  const std::size_t few = few_for(needed);
  if (!is_asked_ && held_.size() <= few) reservations_->take_returned(held_);
  if (is_asked_ || held_.size() > few) return;
  const auto wanted = static_cast<std::uint32_t>(
      std::min<std::size_t>(std::max(advance_, needed) - held_.size(), kMostGrants));
  const std::uint32_t answer_lines =
      1 + (wanted > kUsesInResponse
               ? (wanted - kUsesInResponse + kUsesInFollowing - 1) / kUsesInFollowing
               : 0);
  // What was used comes first: the keeper may have to evict for this.
  if (!reports_.is_empty() && calls_.has_credit(2, 1 + answer_lines)) reports_.post();
  if (!calls_.has_credit(1, answer_lines)) return;
  calls_.post({static_cast<std::uint8_t>(Op::kGrant), static_cast<std::uint16_t>(wanted),
               answer_lines, KeeperCalls::kGrants},
              memory::Line{});
  calls_.flush();
  is_asked_ = true;
  status_ = 0;
  base::reach(FailPoint::kGrantAsked);
}

void GrantedBlocks::on_answer(const rpc::Answer& answer) {
  is_asked_ = false;
  status_ = answer.status;
  if (answer.status != 0) return;
  const std::uint32_t count = std::min<std::uint32_t>(answer.count, kMostGrants);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at =
        i < kUsesInResponse
            ? i * sizeof(BlockUse)
            : rpc::kResponsePayloadBytes +
                  (i - kUsesInResponse) / kUsesInFollowing * rpc::kFollowingPayloadBytes +
                  (i - kUsesInResponse) % kUsesInFollowing * sizeof(BlockUse);
    if (at + sizeof(BlockUse) > answer.payload.size()) break;
    BlockUse use{};
    std::memcpy(&use, answer.payload.data() + at, sizeof use);
    // From the pool, so checked before anything is stored by it.
    if (use.block < context_.access.geometry.blocks) held_.push_back(use);
  }
  is_unchecked_ = true;
}

Status GrantedBlocks::ask_and_wait(std::uint32_t needed) {
  ask(needed);
  if (!held_.empty()) return {};
  CACHALOT_TRY(calls_.wait_for_credit(1, kMaxCommitItems));
  ask(needed);
  return calls_.wait_until([this] { return !held_.empty() || (!is_asked_ && status_ != 0); });
}

// @errors as take()
Status GrantedBlocks::check_held() {
  if (held_.empty()) reservations_->take_returned(held_);
  if (held_.empty()) {
    return Error::make(Code::kNoSpace, "put: the keeper has no block to give: %s",
                       code_name(static_cast<Code>(status_)));
  }
  if (is_unchecked_) {
    // Another keeper's grants are void, and this is the last moment to notice (design 02 §4.1).
    if (keeper_.read().epoch != keeper_.view().epoch &&
        !context_.access.domain().broken(Rule::kHonourOldGrants)) {
      held_.clear();
      inaccessible_.clear();
      heartbeat_.set_lost(true);
      return Error::make(Code::kNoKeeper, "put: another keeper rules this pool since");
    }
    is_unchecked_ = false;
    base::reach(FailPoint::kGrantTaken);
    return_inaccessible();
    if (held_.empty()) {
      return Error::make(
          Code::kNoSpace,
          "put: the keeper's blocks are on a device that this process cannot map, or "
          "that is being given up");
    }
  }
  return {};
}

// The keeper named the device in its table before it granted a block of it, and the table is read after the grant.
void GrantedBlocks::return_inaccessible() {
  ExpansionMemory* const expansions = context_.access.expansions;
  if (expansions == nullptr) return;
  reservations_->take_returned(held_);
  const std::uint32_t limit =
      expansions->follow(context_.access, keeper_.view().keeper, keeper_.view().epoch);
  std::deque<BlockUse> accessible;
  for (const BlockUse& use : held_) {
    if (use.block < limit) {
      accessible.push_back(use);
    } else {
      inaccessible_.push_back(use);
    }
  }
  held_ = std::move(accessible);
  if (inaccessible_.empty()) return;
  while (!inaccessible_.empty() && calls_.has_credit(1, 1)) post_inaccessible();
  calls_.flush();
}

// As many as a request has room for.
void GrantedBlocks::post_inaccessible() {
  UsesPayload uses{};
  uses.namespace_id = namespace_.id();
  std::uint16_t count = 0;
  for (; count < kUsesInHead && !inaccessible_.empty(); inaccessible_.pop_back())
    uses.uses[count++] = inaccessible_.back();
  calls_.post({static_cast<std::uint8_t>(Op::kGiveBack), count, 1, KeeperCalls::kIgnore},
              rpc::request_payload(uses));
}

void GrantedBlocks::clear() {
  held_.clear();
  inaccessible_.clear();
  is_asked_ = false;
}

}  // namespace cachalot::pool

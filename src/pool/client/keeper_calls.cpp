#include "pool/client/keeper_calls.h"

#include <algorithm>

namespace cachalot::pool {

using memory::Rule;

void KeeperCalls::open(std::uint32_t incarnation) {
  incarnation_ = incarnation;
  const KeeperView& keeper = keeper_.view();
  const Layout& layout = context_.access.layout;
  rpc::ChannelPlace place;
  place.request_ring = layout.request_ring(context_.slot);
  place.response_ring = layout.response_ring(keeper.keeper, context_.slot);
  place.ring_lines = kRingLines;
  place.incarnation = incarnation;
  place.epoch = keeper.epoch;
  place.keeper_splits_lines = (keeper.flags & kKeeperSplitLines) != 0;
  channel_ = rpc::Channel(context_.access.region, place, context_.waiter, context_.clock,
                          context_.keeper_doorbell);
  mailbox_watch_.restart();
}

void KeeperCalls::on_answer(const rpc::Answer& answer) {
  if (answer.tag == kIgnore) return;
  if (answer.tag == kGrants) return grants_->on_answer(answer);
  if (answer.tag >= kFirstCommit && answer.tag < kFirstCall) return commits_->on_answer(answer);
  if (answer.tag != call_tag_) return;  // of a call that was given up
  is_answered_ = true;
  status_ = answer.status;
  std::copy_n(answer.payload.begin(), std::min(answer.payload.size(), payload_.size()),
              payload_.begin());
}

Status KeeperCalls::wait_for_credit(std::uint32_t lines, std::uint32_t answer_lines) {
  if (has_credit(lines, answer_lines)) return {};
  poll();
  return wait_until([&] { return has_credit(lines, answer_lines); });
}

Status KeeperCalls::call(Op op, const memory::Line& head, std::uint32_t answer_lines,
                         std::span<const rpc::FollowingLine> following) {
  const auto lines = static_cast<std::uint16_t>(following.size());
  CACHALOT_TRY(wait_for_credit(1u + lines, answer_lines));
  is_answered_ = false;
  channel_.post({static_cast<std::uint8_t>(op), lines, answer_lines, ++call_tag_}, head, following);
  return wait_until([this] { return is_answered_; });
}

Status KeeperCalls::check_status(const char* what) const {
  if (status_ == 0) return {};
  return Error::make(status(), "the keeper refused to %s: %s", what, code_name(status()));
}

// True also if the keeper still rules, but has released this client.
bool KeeperCalls::look_for_loss() {
  const KeeperView now = keeper_.read();
  if (!keeper_.is_serving(now) || keeper_.has_ended(now)) {
    heartbeat_.set_lost(true);
  } else {
    heartbeat_.look_for_loss();
    look_for_damage();
    heartbeat_.beat();  // a waiting client is alive, whatever else its process does
  }
  return heartbeat_.is_lost();
}

// Whether the keeper reads this mailbox and finds nothing in it, or answers and nothing arrives.
void KeeperCalls::look_for_damage() {
  if (heartbeat_.is_lost() || outstanding() == 0) return;
  if (context_.access.domain().broken(Rule::kR1OneWriterPerLine)) return;
  context_.access.domain()
      .order();  // the requests, before the heartbeats that are counted from here on
  const std::uint64_t next_beat = heartbeat_.next_beat();
  ViewLine line{};
  if (!keeper_.read_slot(line) || line.incarnation != incarnation_) return;
  if (!mailbox_watch_.is_passed_over(channel_.answered(), next_beat, line.heartbeat)) return;
  // What it answered before its last echo can be read by now, a long answer by the second poll.
  if (poll() + poll() != 0) return;
  is_damaged_ = true;
  heartbeat_.set_lost(true);
}

}  // namespace cachalot::pool

// Requests of a client to the keeper that it is attached to, and the answers.
//
// A call waits for its answer. A post does not: the answer to a posted request is dropped, or goes to the sink
// for its kind. While a thread waits, it shows that the client lives, and looks for reasons why no answer can
// come: another keeper rules, the keeper has released the client, or the mailbox is damaged. Each of them
// makes the heartbeat's is_lost() true and ends the wait.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "pool/client/call_time.h"
#include "pool/client/client_options.h"
#include "pool/client/heartbeat.h"
#include "pool/client/keeper_watch.h"
#include "pool/client/mailbox_watch.h"
#include "pool/format/requests.h"
#include "rpc/channel.h"

namespace cachalot::pool {

class KeeperCalls final : private rpc::AnswerSink {
 public:
  // Tags of posted requests: where the answer goes.
  static constexpr std::uint64_t kIgnore = 0;
  static constexpr std::uint64_t kGrants = 2;
  static constexpr std::uint64_t kFirstCommit = 16;  // plus the commit's number

  // All of them outlive this.
  KeeperCalls(const ClientContext& context, const CallTime& time, const KeeperWatch& keeper,
              Heartbeat& heartbeat)
      : context_(context), time_(time), keeper_(keeper), heartbeat_(heartbeat) {}
  // Before the first post.
  void set_sinks(rpc::AnswerSink& grants, rpc::AnswerSink& commits) {
    grants_ = &grants;
    commits_ = &commits;
  }

  // Starts with empty rings, as this incarnation, with the keeper that is watched.
  void open(std::uint32_t incarnation);

  // --- Without waiting ---------------------------------------------------------------------------

  bool has_credit(std::uint32_t lines, std::uint32_t answer_lines) const {
    return channel_.has_credit(lines, answer_lines);
  }
  // As rpc::Channel::post().
  template <class Payload>
  void post(const rpc::Channel::Request& request, const Payload& payload,
            std::span<const rpc::FollowingLine> following = {}) {
    channel_.post(request, payload, following);
  }
  void flush() { channel_.flush(); }
  // Sends what was posted and takes what has been answered. @return requests answered
  std::uint32_t poll() { return heartbeat_.has_ended() ? 0 : channel_.poll(*this); }
  std::uint32_t outstanding() const { return channel_.outstanding(); }

  // --- Waiting, for as long as the call has time -------------------------------------------------
  // @errors kTimeout; kNoKeeper: the attachment is lost

  template <class Done>
  Status wait_until(Done&& done);
  Status wait_for_credit(std::uint32_t lines, std::uint32_t answer_lines);
  // One round trip. The keeper's reply, if there is one, is what status() and answer() say.
  Status call(Op op, const memory::Line& head = {}, std::uint32_t answer_lines = 1,
              std::span<const rpc::FollowingLine> following = {});

  Code status() const { return static_cast<Code>(status_); }
  Status check_status(const char* what) const;
  template <class Payload>
  Payload answer() const {
    static_assert(sizeof(Payload) <= rpc::kResponsePayloadBytes);
    Payload payload{};
    std::memcpy(&payload, payload_.data(), sizeof payload);
    return payload;
  }

  // --- Damage ------------------------------------------------------------------------------------

  // The attachment is lost because its mailbox is damaged.
  bool is_damaged() const { return is_damaged_; }
  void forget_damage() { is_damaged_ = false; }

 private:
  // Each call has its own tag: a late answer reaches no other call.
  static constexpr std::uint64_t kFirstCall = std::uint64_t{1} << 32;

  void on_answer(const rpc::Answer& answer) override;
  bool look_for_loss();
  void look_for_damage();

  const ClientContext& context_;
  const CallTime& time_;
  const KeeperWatch& keeper_;
  Heartbeat& heartbeat_;
  rpc::AnswerSink* grants_ = nullptr;
  rpc::AnswerSink* commits_ = nullptr;
  rpc::Channel channel_;
  std::uint32_t incarnation_ = 0;
  MailboxWatch mailbox_watch_;
  bool is_damaged_ = false;

  // The last call, and the answer to it.
  std::uint64_t call_tag_ = kFirstCall;
  bool is_answered_ = false;
  std::uint16_t status_ = 0;
  std::array<unsigned char, rpc::kResponsePayloadBytes> payload_{};
};

template <class Done>
Status KeeperCalls::wait_until(Done&& done) {
  Status status = channel_.wait_until(
      *this, [this] { return time_.until_ns(); }, done, [this] { return look_for_loss(); });
  if (!status && status.error().code == Code::kTimeout) return time_.no_answer();
  return status;
}

}  // namespace cachalot::pool

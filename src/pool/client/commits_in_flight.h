// A client's commits in flight: posted to the keeper, their verdicts not known yet.
//
// Invariants
//   1. From the post of a commit to its answer its blocks are not touched (W1).
//   2. A commit that its keeper never answers is sent again to the next one (W5), which answers "committed" if
//      the old keeper had published it (W2), and else that the use is not held any more.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "block_hash/block_hash.h"
#include "pool/client/client_namespace.h"
#include "pool/client/granted_blocks.h"
#include "pool/client/keeper_calls.h"
#include "pool/format/requests.h"
#include "pool/format/statistics.h"

namespace cachalot::pool {

// A block that was written in place.
struct WrittenBlock {
  BlockHash hash;
  std::uint32_t length = 0;               // bytes of payload; the last line is padded with zeros
  std::optional<std::uint64_t> checksum;  // XXH3-64 of the padded payload (memory::FusedHash)
  bool is_copy = false;                   // it came from a host that goes on having it
};

// One commit: a chain of written blocks.
class Commit {
 public:
  void set(std::uint32_t at, const BlockUse& use, const WrittenBlock& block) {
    uses_[at] = use;
    items_[at] = {};
    rpc::store_payload(
        items_[at].payload,
        CommitItem{block.hash.low, block.hash.high, block.checksum.value_or(0), use, block.length,
                   (block.checksum ? kEntryHasChecksum : 0u) | (block.is_copy ? kItemIsCopy : 0u)});
  }
  std::span<const BlockUse> uses(std::uint32_t count) const { return {uses_.data(), count}; }

 private:
  friend class CommitsInFlight;

  std::uint32_t count_ = 0;
  std::array<BlockUse, kMaxCommitItems> uses_;
  Verdict* verdicts_ = nullptr;  // null: no caller waits for them
  // The request, kept to be sent again.
  CommitPayload chain_{};
  std::array<rpc::FollowingLine, kMaxCommitItems> items_;
  bool is_again_ = false;
};

class CommitsInFlight final : public rpc::AnswerSink {
 public:
  // All of them outlive this.
  CommitsInFlight(const ClientContext& context, KeeperCalls& calls,
                  const ClientNamespace& name_space, GrantedBlocks& grants,
                  LiveClientCounters& counters)
      : context_(context),
        calls_(calls),
        namespace_(name_space),
        grants_(grants),
        counters_(counters) {}

  // Waits until one more may be in flight. next() is it, to be filled.
  Status wait_for_room();
  Commit& next() { return commits_[next_]; }
  // Posts the first `count` items of next(). On failure their blocks go back to the grants.
  // @param verdicts  null: no caller waits for them; else valid until the answer or forget_verdicts()
  // @param goes_on   more of this chain follows: the keeper spares what is there, while it can
  Status send(std::uint32_t count, const BlockHash* parent, Verdict* verdicts, bool goes_on);

  bool none_in_flight() const { return in_flight_ == 0; }
  // Waits for all answers.
  Status drain();
  // The callers that wait for verdicts return; the answers may still come.
  void forget_verdicts();

  // All that are in flight were sent to a keeper, or an incarnation, that is no more.
  void begin_resending() { unsent_ = in_flight_; }
  // W5: sends them again, and waits for the answers. Continues where the last call's time was up.
  Status resend();

  // A broken rule (Rule::kReuseAfterTimeout): the blocks of the commits in flight become grants.
  void take_back_unanswered();

 private:
  void on_answer(const rpc::Answer& answer) override;
  void take_verdict(const Commit& commit, std::uint32_t at, Verdict verdict);
  void post(const Commit& commit);
  Commit& at_back(std::uint32_t n) {
    return commits_[(next_ + rpc::kMaxOutstanding - n) % rpc::kMaxOutstanding];
  }

  const ClientContext& context_;
  KeeperCalls& calls_;
  const ClientNamespace& namespace_;
  GrantedBlocks& grants_;
  LiveClientCounters& counters_;
  std::array<Commit, rpc::kMaxOutstanding> commits_;
  std::uint32_t next_ = 0, in_flight_ = 0;
  std::uint32_t unsent_ = 0;  // of those in flight, the last ones: not sent to this keeper yet
};

}  // namespace cachalot::pool

#include "pool/client/commits_in_flight.h"

#include <algorithm>
#include <cstring>

#include "base/fail_point.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

Status CommitsInFlight::wait_for_room() {
  return calls_.wait_until([this] { return in_flight_ < rpc::kMaxOutstanding - 2; });
}

Status CommitsInFlight::send(std::uint32_t count, const BlockHash* parent, Verdict* verdicts,
                             bool goes_on) {
  Commit& commit = next();
  if (const Status credit = calls_.wait_for_credit(count + 1, 1); !credit) {
    grants_.put_back(commit.uses(count));
    return credit;
  }
  // R4: the payloads are seen before the commit that names them.
  context_.access.domain().order();

  commit.chain_ = {namespace_.id(), parent != nullptr, 0, 0, goes_on ? kCommitGoesOn : 0};
  if (parent != nullptr) {
    commit.chain_.parent_low = parent->low;
    commit.chain_.parent_high = parent->high;
  }
  commit.count_ = count;
  commit.verdicts_ = verdicts;
  commit.is_again_ = false;
  base::reach(FailPoint::kPutStored);
  post(commit);
  next_ = (next_ + 1) % rpc::kMaxOutstanding;
  ++in_flight_;
  counters_[ClientCounter::kPuts] += count;
  base::reach(FailPoint::kPutPosted);
  return {};
}

void CommitsInFlight::post(const Commit& commit) {
  const auto number = static_cast<std::uint32_t>(&commit - commits_.data());
  calls_.post({static_cast<std::uint8_t>(Op::kCommit), static_cast<std::uint16_t>(commit.count_), 1,
               KeeperCalls::kFirstCommit + number},
              rpc::request_payload(commit.chain_), {commit.items_.data(), commit.count_});
  calls_.flush();
}

void CommitsInFlight::on_answer(const rpc::Answer& answer) {
  Commit& commit = commits_[answer.tag - KeeperCalls::kFirstCommit];
  --in_flight_;
  CommitAnswer verdicts{};
  if (answer.status == 0 && answer.payload.size() >= sizeof verdicts) {
    std::memcpy(&verdicts, answer.payload.data(), sizeof verdicts);
  } else {
    std::fill_n(verdicts.verdicts, kMaxCommitItems, Verdict::kNotHeld);
  }
  for (std::uint32_t i = 0; i < commit.count_; ++i) take_verdict(commit, i, verdicts.verdicts[i]);
  base::reach(FailPoint::kPutAnswered);
}

void CommitsInFlight::take_verdict(const Commit& commit, std::uint32_t at, Verdict verdict) {
  if (commit.verdicts_ != nullptr) commit.verdicts_[at] = verdict;
  switch (verdict) {
    case Verdict::kCommitted:
      ++counters_[ClientCounter::kCommitted];
      break;
    case Verdict::kNotHeld:
      ++counters_[ClientCounter::kRefused];
      break;
    case Verdict::kDuplicate:
    case Verdict::kNoRoom:
    case Verdict::kNoParent:
    case Verdict::kBadItem:
      ++counters_[verdict == Verdict::kDuplicate ? ClientCounter::kDuplicates
                                                 : ClientCounter::kRefused];
      // W3: the block is ours again, for its next use, if the keeper that says so still rules.
      if (commit.is_again_) break;
      grants_.add_returned({commit.uses_[at].block, commit.uses_[at].generation +
                                                        !context_.access.domain().broken(
                                                            Rule::kReturnedBlockKeepsGeneration)});
      break;
  }
}

Status CommitsInFlight::drain() {
  return calls_.wait_until([this] { return in_flight_ == 0; });
}

void CommitsInFlight::forget_verdicts() {
  for (Commit& commit : commits_) commit.verdicts_ = nullptr;
}

Status CommitsInFlight::resend() {
  for (; unsent_ != 0; --unsent_) {
    Commit& commit = at_back(unsent_);
    CACHALOT_TRY(calls_.wait_for_credit(commit.count_ + 1, 1));
    commit.chain_.namespace_id = namespace_.id();
    commit.is_again_ = true;
    post(commit);
  }
  return drain();
}

void CommitsInFlight::take_back_unanswered() {
  for (std::uint32_t n = 1; n <= in_flight_; ++n)
    grants_.put_back(at_back(n).uses(at_back(n).count_));
}

}  // namespace cachalot::pool

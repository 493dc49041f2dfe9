// Storing: grants, payloads, commits.

#include <algorithm>

#include "pool/client/client.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::kLineBytes;
using memory::Rule;

namespace {

constexpr std::uint32_t kMostGrants =
    kUsesInResponse + (rpc::kMaxMessageLines - 1) * kUsesInFollowing;

}  // namespace

// Asks for the blocks that the caller is short of, and so many more that the next puts need not wait;
// at most one request is in flight.
Status Client::ask_for_grants(std::uint32_t needed) {
  const std::size_t few = std::max(advance_ / 2, needed - 1);
  if (!grant_asked_ && grants_.size() <= few) book_->take_returned(grants_);
  if (grant_asked_ || grants_.size() > few) return {};
  const auto wanted = static_cast<std::uint32_t>(
      std::min<std::size_t>(std::max(advance_, needed) - grants_.size(), kMostGrants));
  const std::uint32_t answer_lines =
      1 + (wanted > kUsesInResponse
               ? (wanted - kUsesInResponse + kUsesInFollowing - 1) / kUsesInFollowing
               : 0);
  // What was used comes first: the keeper may have to evict for this.
  if (report_count_ != 0 && channel_.has_credit(2, 1 + answer_lines)) post_reports();
  if (!channel_.has_credit(1, answer_lines)) return {};
  channel_.post({static_cast<std::uint8_t>(Op::kGrant), static_cast<std::uint16_t>(wanted),
                 answer_lines, kGrants},
                memory::Line{});
  channel_.flush();
  grant_asked_ = true;
  grant_status_ = 0;
  base::reach(FailPoint::kGrantAsked);
  return {};
}

void Client::on_grant_answer(const rpc::Answer& answer) {
  grant_asked_ = false;
  grant_status_ = answer.status;
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
    if (use.block < access_.geometry.blocks) grants_.push_back(use);
  }
  grants_unchecked_ = true;
}

// @param needed  by the caller in all, this one included
Result<BlockUse> Client::take_grant(std::uint32_t needed) {
  CACHALOT_TRY(ask_for_grants(needed));
  if (grants_.empty()) {
    CACHALOT_TRY(wait_for_credit(1, kMaxCommitItems));
    CACHALOT_TRY(ask_for_grants(needed));
    CACHALOT_TRY(wait_for_keeper(
        [this] { return !grants_.empty() || (!grant_asked_ && grant_status_ != 0); }));
    // Its own commits in flight may give blocks back.
    if (grants_.empty() && commits_under_way_ != 0) CACHALOT_TRY(drain());
    if (grants_.empty()) book_->take_returned(grants_);
    if (grants_.empty()) {
      return Error::make(Code::kNoSpace, "put: the keeper has no block to give: %s",
                         code_name(static_cast<Code>(grant_status_)));
    }
  }
  if (grants_unchecked_) {
    // Another keeper's grants are void, and this is the last moment to notice (design 02 §4.1).
    if (directory_.read_keepers().epoch != view_.epoch &&
        !access_.domain().broken(Rule::kHonourOldGrants)) {
      grants_.clear();
      lost_.store(true, std::memory_order_relaxed);
      return Error::make(Code::kNoKeeper, "put: another keeper rules this pool since");
    }
    grants_unchecked_ = false;
    base::reach(FailPoint::kGrantTaken);
  }
  const BlockUse use = grants_.front();
  grants_.pop_front();
  return use;
}

// Copies a payload in, its last line padded with zeros. @return its checksum, or 0
std::uint64_t Client::write_payload(const BlockUse& use, std::span<const std::byte> bytes) {
  const std::uint64_t padded = padded_bytes(bytes.size());
  memory::FusedHash hash(padded);
  memory::FusedHash* fused = write_checksums_ ? &hash : nullptr;
  std::uint64_t done = 0;
  access_.for_each_extent(use.block, padded, [&](std::byte* to, std::uint64_t length) {
    const std::uint64_t whole = std::min(length, (bytes.size() - done) / kLineBytes * kLineBytes);
    copy_in_pieces(whole, FailPoint::kWriteBulk, [&](std::uint64_t at, std::uint64_t piece) {
      access_.domain().write_bulk(to + at, bytes.data() + done + at, piece, fused);
    });
    done += whole;
    if (whole == length) return;
    memory::Line tail{};
    std::memcpy(&tail, bytes.data() + done, bytes.size() - done);
    access_.domain().write_bulk(to + whole, &tail, kLineBytes, fused);
    done = bytes.size();
  });
  counters_[ClientCounter::kWrittenBytes] += bytes.size();
  return write_checksums_ ? hash.finish() : 0;
}

Status Client::check_items(std::span<const PutItem> items) const {
  for (const PutItem& item : items) {
    if (!item.bytes.empty() && item.bytes.size() <= access_.geometry.block_bytes) continue;
    return Error::make(Code::kInvalidArgument, "put: a block of %zu bytes is not within 1 to %llu",
                       item.bytes.size(),
                       static_cast<unsigned long long>(access_.geometry.block_bytes));
  }
  return {};
}

// Writes the payloads of one commit's worth of items and posts it.
Status Client::post_commit(const BlockHash* parent, std::span<const PutItem> items,
                           Verdict* verdicts, bool goes_on) {
  if (clock_->now_ns() > until_ns()) return no_answer();  // each of many commits was slow
  CACHALOT_TRY(begin_commit());
  Commit& commit = commits_[next_commit_];
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    Result<BlockUse> use = take_grant(static_cast<std::uint32_t>(items.size()) - i);
    if (!use) {
      grants_.insert(grants_.end(), commit.uses.begin(), commit.uses.begin() + i);
      return use.error();
    }
    WrittenBlock written{items[i].hash, static_cast<std::uint32_t>(items[i].bytes.size()), {}};
    const std::uint64_t checksum = write_payload(*use, items[i].bytes);
    if (write_checksums_) written.checksum = checksum;
    add_item(commit, i, *use, written);
  }
  return send_commit(commit, static_cast<std::uint32_t>(items.size()), parent, verdicts, goes_on);
}

// Makes room for one more commit in flight. What was read is reported before what is written.
Status Client::begin_commit() {
  CACHALOT_TRY(flush_reports());
  return wait_for_keeper([this] { return commits_under_way_ < rpc::kMaxOutstanding - 2; });
}

void Client::add_item(Commit& commit, std::uint32_t at, const BlockUse& use,
                      const WrittenBlock& block) {
  const CommitItem item{block.hash.low,
                        block.hash.high,
                        block.checksum.value_or(0),
                        use,
                        block.length,
                        block.checksum ? kEntryHasChecksum : 0u};
  commit.uses[at] = use;
  commit.items[at] = {};
  rpc::store_payload(commit.items[at].payload, item);
}

Status Client::send_commit(Commit& commit, std::uint32_t count, const BlockHash* parent,
                           Verdict* verdicts, bool goes_on) {
  if (const Status credit = wait_for_credit(count + 1, 1); !credit) {
    grants_.insert(grants_.end(), commit.uses.begin(), commit.uses.begin() + count);
    return credit;
  }
  // R4: the payloads are seen before the commit that names them.
  access_.domain().order();

  commit.chain = {namespace_id(), parent != nullptr, 0, 0, goes_on ? kCommitGoesOn : 0};
  if (parent != nullptr) {
    commit.chain.parent_low = parent->low;
    commit.chain.parent_high = parent->high;
  }
  commit.count = count;
  commit.verdicts = verdicts;
  commit.is_again = false;
  base::reach(FailPoint::kPutStored);
  post(commit);
  next_commit_ = (next_commit_ + 1) % rpc::kMaxOutstanding;
  ++commits_under_way_;
  counters_[ClientCounter::kPuts] += count;
  base::reach(FailPoint::kPutPosted);
  return {};
}

void Client::post(Commit& commit) {
  const auto number = static_cast<std::uint32_t>(&commit - commits_.data());
  channel_.post({static_cast<std::uint8_t>(Op::kCommit), static_cast<std::uint16_t>(commit.count),
                 1, kFirstCommit + number},
                rpc::request_payload(commit.chain), {commit.items.data(), commit.count});
  channel_.flush();
}

void Client::on_commit_answer(Commit& commit, const rpc::Answer& answer) {
  --commits_under_way_;
  CommitAnswer verdicts{};
  if (answer.status == 0 && answer.payload.size() >= sizeof verdicts) {
    std::memcpy(&verdicts, answer.payload.data(), sizeof verdicts);
  } else {
    std::fill_n(verdicts.verdicts, kMaxCommitItems, Verdict::kNotHeld);
  }
  for (std::uint32_t i = 0; i < commit.count; ++i) {
    const Verdict verdict = verdicts.verdicts[i];
    if (commit.verdicts != nullptr) commit.verdicts[i] = verdict;
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
        if (commit.is_again) break;
        grants_.push_back({commit.uses[i].block,
                           commit.uses[i].generation +
                               !access_.domain().broken(Rule::kReturnedBlockKeepsGeneration)});
        grants_unchecked_ = true;
        break;
    }
  }
  base::reach(FailPoint::kPutAnswered);
}

Status Client::put(const BlockHash* parent, std::span<const PutItem> items,
                   std::span<Verdict> verdicts) {
  CACHALOT_TRY(check_items(items));
  std::fill_n(verdicts.begin(), items.size(), Verdict::kNotHeld);
  const CallTime::Scope scope = call_scope();
  for (std::size_t done = 0;;) {
    Status status = ensure_attached();
    if (status) {
      status = put_once(done == 0 ? parent : &items[done - 1].hash, items.subspan(done),
                        verdicts.subspan(done));
    }
    if (!status && !is_lost()) {
      forget_verdicts();  // of commits still in doubt: the caller's array goes away
      return status;
    }
    // The keeper went away, or gave this client up, in between. What became of the commits in flight
    // is known after the next attachment; what is not published then is stored once more.
    if (is_lost() || !attached_) {
      const Status again = reattach(options_.recovery_ns);
      if (!again) {
        forget_verdicts();
        return status ? again : status;
      }
    } else if (status) {
      return {};
    }
    const auto is_done = [](Verdict verdict) {
      return verdict == Verdict::kCommitted || verdict == Verdict::kDuplicate;
    };
    while (done < items.size() && is_done(verdicts[done])) ++done;
    if (done == items.size()) return {};
    std::fill(verdicts.begin() + static_cast<std::ptrdiff_t>(done),
              verdicts.begin() + static_cast<std::ptrdiff_t>(items.size()), Verdict::kNotHeld);
    if (clock_->now_ns() > until_ns()) return no_answer();
  }
}

Status Client::put_once(const BlockHash* parent, std::span<const PutItem> items,
                        std::span<Verdict> verdicts) {
  // A chain longer than one commit goes in several; each one's parent is the last of the one before.
  const std::size_t batch = std::clamp<std::size_t>(options_.grant_target / 2, 1, kMaxCommitItems);
  Status status;
  for (std::size_t done = 0; status.ok() && done < items.size(); done += batch) {
    const std::size_t n = std::min(items.size() - done, batch);
    status = post_commit(done == 0 ? parent : &items[done - 1].hash, items.subspan(done, n),
                         verdicts.data() + done, done + n < items.size());
  }
  const Status drained = drain();
  if (!drained && access_.domain().broken(Rule::kReuseAfterTimeout)) {
    for (std::uint32_t i = 0; i < commits_under_way_; ++i) {
      const Commit& commit =
          commits_[(next_commit_ + rpc::kMaxOutstanding - 1 - i) % rpc::kMaxOutstanding];
      grants_.insert(grants_.end(), commit.uses.begin(), commit.uses.begin() + commit.count);
    }
  }
  if (!drained && !is_lost()) forget_verdicts();
  return status.ok() ? drained : status;
}

// The caller of these verdicts has returned; the answers may still come.
void Client::forget_verdicts() {
  for (Commit& commit : commits_) commit.verdicts = nullptr;
}

// --- In place ------------------------------------------------------------------------------------

Result<Reservation> Client::reserve(std::uint32_t blocks) {
  if (blocks == 0 || blocks > kMaxCommitItems) {
    return Error::make(Code::kInvalidArgument, "reserve: %u blocks is not within 1 to %u", blocks,
                       kMaxCommitItems);
  }
  const CallTime::Scope scope = call_scope();
  CACHALOT_TRY(ensure_attached());
  Result<Reservation> reserved = reserve_once(blocks);
  if (reserved || !is_lost()) return reserved;
  // That the keeper has gone was noticed only here: the next one's blocks do as well.
  CACHALOT_TRY(ensure_attached());
  return reserve_once(blocks);
}

Result<Reservation> Client::reserve_once(std::uint32_t blocks) {
  book_->admit(incarnation_);
  HeldBlocks::Closed held(new HeldBlocks{book_, incarnation_, {}});
  while (held->uses.size() < blocks) {
    const Result<BlockUse> use = take_grant(blocks - static_cast<std::uint32_t>(held->uses.size()));
    if (!use && use.error().code == Code::kNoSpace && !held->uses.empty()) break;
    if (!use) return use.error();
    held->uses.push_back(*use);
  }
  return Reservation(std::move(held));
}

Status Client::commit(const BlockHash* parent, WrittenReservation reservation,
                      std::span<const WrittenBlock> blocks, std::span<Verdict> verdicts,
                      bool goes_on) {
  const std::span<const BlockUse> uses = reservation.uses();
  const auto count = static_cast<std::uint32_t>(blocks.size());
  if (count == 0 || count > uses.size() || verdicts.size() < count) {
    return Error::make(Code::kInvalidArgument, "commit: %u blocks, of %zu that were reserved",
                       count, uses.size());
  }
  if (reservation.held_->book != book_) {
    return Error::make(Code::kInvalidArgument,
                       "commit: the blocks were reserved by another client");
  }
  std::fill_n(verdicts.begin(), count, Verdict::kNotHeld);
  if (!attached_ || is_lost() || reservation.held_->incarnation != incarnation_)
    return void_reservation();
  const CallTime::Scope scope = call_scope();
  CACHALOT_TRY(begin_commit());
  // W1: from here on the blocks are the commit's.
  const std::unique_ptr<HeldBlocks> held(reservation.held_.release());
  Commit& commit = commits_[next_commit_];
  for (std::uint32_t i = 0; i < count; ++i) add_item(commit, i, uses[i], blocks[i]);
  grants_.insert(grants_.end(), uses.begin() + count, uses.end());
  Status status = send_commit(commit, count, parent, verdicts.data(), goes_on);
  if (status) status = drain();
  if (status) return {};
  // As in put(): what is in doubt is known after the next attachment.
  if (!is_lost()) {
    forget_verdicts();
    return status;
  }
  if (const Status again = reattach(options_.recovery_ns); !again) {
    forget_verdicts();
    return again;
  }
  const bool all_known =
      std::all_of(verdicts.begin(), verdicts.begin() + count, [](Verdict verdict) {
        return verdict == Verdict::kCommitted || verdict == Verdict::kDuplicate;
      });
  return all_known ? Status() : void_reservation();
}

Status Client::post_put(const BlockHash* parent, const PutItem& item) {
  CACHALOT_TRY(check_items({&item, 1}));
  const CallTime::Scope scope = call_scope();
  CACHALOT_TRY(ensure_attached());
  return post_commit(parent, {&item, 1}, nullptr, false);
}

Status Client::drain() {
  if (has_left_) return has_detached();
  const CallTime::Scope scope = call_scope();
  return wait_for_keeper([this] { return commits_under_way_ == 0; });
}

}  // namespace cachalot::pool

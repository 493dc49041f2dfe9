#include "pool/client/block_writer.h"

#include <algorithm>
#include <cstring>

#include "base/fail_point.h"
#include "pool/client/copy_in_pieces.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::kLineBytes;
using memory::Rule;

namespace {

// Copies a payload in, its last line padded with zeros. @return its checksum, if asked for, or 0
std::uint64_t copy_in(const Access& access, const BlockUse& use, std::span<const std::byte> bytes,
                      bool hashed) {
  const std::uint64_t padded = padded_bytes(bytes.size());
  memory::FusedHash hash(padded);
  memory::FusedHash* fused = hashed ? &hash : nullptr;
  std::uint64_t done = 0;
  access.for_each_extent(use.block, padded, [&](std::byte* to, std::uint64_t length) {
    const std::uint64_t whole = std::min(length, (bytes.size() - done) / kLineBytes * kLineBytes);
    copy_in_pieces(whole, FailPoint::kWriteBulk, [&](std::uint64_t at, std::uint64_t piece) {
      access.domain().write_bulk(to + at, bytes.data() + done + at, piece, fused);
    });
    done += whole;
    if (whole == length) return;
    memory::Line tail{};
    std::memcpy(&tail, bytes.data() + done, bytes.size() - done);
    access.domain().write_bulk(to + whole, &tail, kLineBytes, fused);
    done = bytes.size();
  });
  return hashed ? hash.finish() : 0;
}

bool is_published(Verdict verdict) {
  return verdict == Verdict::kCommitted || verdict == Verdict::kDuplicate;
}

}  // namespace

BlockWriter::BlockWriter(const ClientContext& context, CallTime& time, Attachment& attachment,
                         HitReports& reports, GrantedBlocks& grants, CommitsInFlight& commits,
                         LiveClientCounters& counters)
    : context_(context),
      time_(time),
      attachment_(attachment),
      reports_(reports),
      grants_(grants),
      commits_(commits),
      counters_(counters),
      writes_checksums_(context.options.write_checksums.value_or(context.access.geometry.domain !=
                                                                 memory::DomainKind::kCoherent)) {}

// --- Copying -----------------------------------------------------------------------------------

Status BlockWriter::check_items(std::span<const PutItem> items) const {
  const std::uint64_t block_bytes = context_.access.geometry.block_bytes;
  for (const PutItem& item : items) {
    if (!item.bytes.empty() && item.bytes.size() <= block_bytes) continue;
    return Error::make(Code::kInvalidArgument, "put: a block of %zu bytes is not within 1 to %llu",
                       item.bytes.size(), static_cast<unsigned long long>(block_bytes));
  }
  return {};
}

Status BlockWriter::put(const BlockHash* parent, std::span<const PutItem> items,
                        std::span<Verdict> verdicts) {
  CACHALOT_TRY(check_items(items));
  std::fill_n(verdicts.begin(), items.size(), Verdict::kNotHeld);
  const CallTime::Scope scope(time_);
  for (std::size_t done = 0;;) {
    Status status = attachment_.ensure();
    if (status) {
      status = put_once(done == 0 ? parent : &items[done - 1].hash, items.subspan(done),
                        verdicts.subspan(done));
    }
    if (!status && !attachment_.is_lost()) {
      commits_.forget_verdicts();  // of commits still in doubt: the caller's array goes away
      return status;
    }
    // The keeper went away, or released this client, in between. What became of the commits in flight
    // is known after the next attachment; what is not published then is stored once more.
    if (attachment_.is_lost() || !attachment_.is_attached()) {
      const Status again = attachment_.reattach(context_.options.recovery_ns);
      if (!again) {
        commits_.forget_verdicts();
        return status ? again : status;
      }
    } else if (status) {
      return {};
    }
    while (done < items.size() && is_published(verdicts[done])) ++done;
    if (done == items.size()) return {};
    std::fill(verdicts.begin() + static_cast<std::ptrdiff_t>(done),
              verdicts.begin() + static_cast<std::ptrdiff_t>(items.size()), Verdict::kNotHeld);
    if (time_.is_over()) return time_.no_answer();
  }
}

Status BlockWriter::put_once(const BlockHash* parent, std::span<const PutItem> items,
                             std::span<Verdict> verdicts) {
  // A chain longer than one commit goes in several; each one's parent is the last of the one before.
  const std::size_t batch =
      std::clamp<std::size_t>(context_.options.grant_target / 2, 1, kMaxCommitItems);
  Status status;
  for (std::size_t done = 0; status.ok() && done < items.size(); done += batch) {
    const std::size_t n = std::min(items.size() - done, batch);
    status = post_commit(done == 0 ? parent : &items[done - 1].hash, items.subspan(done, n),
                         verdicts.data() + done, done + n < items.size());
  }
  const Status drained = commits_.drain();
  if (!drained && context_.access.domain().broken(Rule::kReuseAfterTimeout))
    commits_.take_back_unanswered();
  if (!drained && !attachment_.is_lost()) commits_.forget_verdicts();
  return status.ok() ? drained : status;
}

Status BlockWriter::post_put(const BlockHash* parent, const PutItem& item) {
  CACHALOT_TRY(check_items({&item, 1}));
  const CallTime::Scope scope(time_);
  CACHALOT_TRY(attachment_.ensure());
  return post_commit(parent, {&item, 1}, nullptr, false);
}

Status BlockWriter::drain() {
  if (attachment_.has_left()) return Attachment::has_detached();
  const CallTime::Scope scope(time_);
  return commits_.drain();
}

// Writes the payloads of one commit's worth of items and posts it.
Status BlockWriter::post_commit(const BlockHash* parent, std::span<const PutItem> items,
                                Verdict* verdicts, bool goes_on) {
  if (time_.is_over()) return time_.no_answer();  // each of many commits was slow
  CACHALOT_TRY(begin_commit());
  Commit& commit = commits_.next();
  const auto count = static_cast<std::uint32_t>(items.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const Result<BlockUse> use = take_grant(count - i);
    if (!use) {
      grants_.put_back(commit.uses(i));
      return use.error();
    }
    const std::span<const std::byte> bytes = items[i].bytes;
    WrittenBlock written{items[i].hash, static_cast<std::uint32_t>(bytes.size()), {}};
    const std::uint64_t checksum = copy_in(context_.access, *use, bytes, writes_checksums_);
    counters_[ClientCounter::kWrittenBytes] += bytes.size();
    if (writes_checksums_) written.checksum = checksum;
    commit.set(i, *use, written);
  }
  return commits_.send(count, parent, verdicts, goes_on);
}

// What was read is reported before what is written.
Status BlockWriter::begin_commit() {
  CACHALOT_TRY(reports_.flush());
  return commits_.wait_for_room();
}

// @param needed  by the caller in all, this one included
Result<BlockUse> BlockWriter::take_grant(std::uint32_t needed) {
  CACHALOT_TRY(grants_.await(needed));
  // Its own commits in flight may give blocks back.
  if (grants_.none_ready() && !commits_.none_in_flight()) CACHALOT_TRY(commits_.drain());
  return grants_.take();
}

// --- In place ----------------------------------------------------------------------------------

Result<Reservation> BlockWriter::reserve(std::uint32_t blocks) {
  if (blocks == 0 || blocks > kMaxCommitItems) {
    return Error::make(Code::kInvalidArgument, "reserve: %u blocks is not within 1 to %u", blocks,
                       kMaxCommitItems);
  }
  const CallTime::Scope scope(time_);
  CACHALOT_TRY(attachment_.ensure());
  Result<Reservation> reserved = reserve_once(blocks);
  if (reserved || !attachment_.is_lost()) return reserved;
  // The loss of the keeper was noticed only here: the next one's blocks do as well.
  CACHALOT_TRY(attachment_.ensure());
  return reserve_once(blocks);
}

Result<Reservation> BlockWriter::reserve_once(std::uint32_t blocks) {
  const std::uint32_t incarnation = attachment_.incarnation();
  grants_.reservations()->admit(incarnation);
  HeldBlocks::Closed held(new HeldBlocks{grants_.reservations(), incarnation, {}});
  while (held->uses.size() < blocks) {
    const Result<BlockUse> use = take_grant(blocks - static_cast<std::uint32_t>(held->uses.size()));
    if (!use && use.error().code == Code::kNoSpace && !held->uses.empty()) break;
    if (!use) return use.error();
    held->uses.push_back(*use);
  }
  return Reservation(std::move(held));
}

Status BlockWriter::commit(const BlockHash* parent, WrittenReservation reservation,
                           std::span<const WrittenBlock> blocks, std::span<Verdict> verdicts,
                           bool goes_on) {
  const std::span<const BlockUse> uses = reservation.uses();
  const auto count = static_cast<std::uint32_t>(blocks.size());
  if (count == 0 || count > uses.size() || verdicts.size() < count) {
    return Error::make(Code::kInvalidArgument, "commit: %u blocks, of %zu that were reserved",
                       count, uses.size());
  }
  if (reservation.held_->book != grants_.reservations()) {
    return Error::make(Code::kInvalidArgument,
                       "commit: the blocks were reserved by another client");
  }
  std::fill_n(verdicts.begin(), count, Verdict::kNotHeld);
  if (!attachment_.is_attached() || attachment_.is_lost() ||
      reservation.held_->incarnation != attachment_.incarnation()) {
    return void_reservation();
  }
  const CallTime::Scope scope(time_);
  CACHALOT_TRY(begin_commit());
  // W1: from here on the blocks are the commit's.
  const std::unique_ptr<HeldBlocks> held(reservation.held_.release());
  Commit& commit = commits_.next();
  for (std::uint32_t i = 0; i < count; ++i) commit.set(i, uses[i], blocks[i]);
  grants_.put_back(uses.subspan(count));
  Status status = commits_.send(count, parent, verdicts.data(), goes_on);
  if (status) status = commits_.drain();
  if (status) return {};
  // As in put(): what is in doubt is known after the next attachment.
  if (!attachment_.is_lost()) {
    commits_.forget_verdicts();
    return status;
  }
  if (const Status again = attachment_.reattach(context_.options.recovery_ns); !again) {
    commits_.forget_verdicts();
    return again;
  }
  const bool all_known = std::all_of(verdicts.begin(), verdicts.begin() + count, is_published);
  return all_known ? Status() : void_reservation();
}

}  // namespace cachalot::pool

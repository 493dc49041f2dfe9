#include "pool/client/client.h"

#include <algorithm>
#include <limits>

#include "base/fail_point.h"
#include "pool/reader/validated_read.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::kLineBytes;

// --- Reading -----------------------------------------------------------------------------------

std::size_t Client::lookup(std::span<const BlockHash> hashes, std::span<Found> found) {
  const std::size_t hits = directory_.lookup(hashes, namespace_id(), lookup_view_, found);
  ++counters_[ClientCounter::kLookups];
  counters_[ClientCounter::kLookedUpBlocks] += hashes.size();
  counters_[ClientCounter::kHitBlocks] += hits;
  base::reach(FailPoint::kLookedUp);
  return hits;
}

std::size_t Client::read(std::span<const Found> found, std::span<std::byte* const> to) {
  ValidatedRead read(access_, lookup_view_, found, verify_checksums_);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < read.found().size(); ++i) {
    const bool hashed = read.has_checksum(i);
    const std::uint64_t checksum = read_payload(found[i], to[i], hashed);
    bytes += found[i].entry.length;
    if (hashed) read.check_bytes(i, checksum);
  }
  base::reach(FailPoint::kReadCopied);
  const ValidatedRead::Outcome outcome = read.validate();
  counters_[ClientCounter::kStaleReads] += outcome.stale != 0;
  counters_[ClientCounter::kDamagedReads] += outcome.is_damaged;
  counters_[ClientCounter::kReadBlocks] += outcome.valid;
  counters_[ClientCounter::kReadBytes] += bytes;
  base::reach(FailPoint::kReadValidated);
  return outcome.valid;
}

// Copies a payload out. @return its checksum, if asked for
std::uint64_t Client::read_payload(const Found& found, std::byte* to, bool hashed) const {
  const Entry& entry = found.entry;
  memory::FusedHash hash(padded_bytes(entry.length));
  memory::FusedHash* use = hashed ? &hash : nullptr;
  std::uint64_t done = 0;
  access_.for_each_extent(
      entry.block, padded_bytes(entry.length), [&](std::byte* from, std::uint64_t bytes) {
        const std::uint64_t whole =
            std::min(bytes, (entry.length - done) / kLineBytes * kLineBytes);
        copy_in_pieces(whole, FailPoint::kReadBulk, [&](std::uint64_t at, std::uint64_t length) {
          access_.domain().read_bulk(to + done + at, from + at, length, use);
        });
        done += whole;
        if (whole == bytes) return;
        // The last line is only partly payload: it goes by way of a line of our own.
        memory::Line tail;
        access_.domain().read_bulk(&tail, from + whole, kLineBytes, use);
        std::memcpy(to + done, &tail, entry.length - done);
        done = entry.length;
      });
  return hashed ? hash.finish() : 0;
}

Result<std::uint32_t> Client::get(const BlockHash& hash, std::span<std::byte> to) {
  constexpr int kAttempts = 4;
  bool is_damaged = false;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Found found;
    if (lookup({&hash, 1}, {&found, 1}) == 0) {
      is_damaged = false;
      break;
    }
    if (found.entry.length > to.size()) {
      return Error::make(Code::kNoSpace, "get: the block has %u bytes, the buffer %zu",
                         found.entry.length, to.size());
    }
    std::byte* const target = to.data();
    const std::uint64_t damaged_before = counters_[ClientCounter::kDamagedReads];
    if (read({&found, 1}, {&target, 1}) == 1) {
      report_hit(found);
      return found.entry.length;
    }
    is_damaged = counters_[ClientCounter::kDamagedReads] != damaged_before;
  }
  if (is_damaged) {
    return Error::make(
        Code::kCorrupt,
        "get: the bytes of block %s do not match their checksum (`cachalot evict` drops it)",
        block_hash::to_hex(hash).c_str());
  }
  return Error::make(Code::kNotFound, "get: block %s is not in the pool",
                     block_hash::to_hex(hash).c_str());
}

void Client::report_hit(const Found& deepest) {
  if (!attached_ || is_lost()) return;
  reports_[report_count_++] = {deepest.entry.block, deepest.entry.generation};
  if (report_count_ < reports_.size()) return;
  if (!channel_.has_credit(1, 1)) poll();
  if (channel_.has_credit(1, 1)) return post_reports();
  // A keeper that is slow, or gone: no reader waits for it.
  counters_[ClientCounter::kLostReports] += report_count_;
  report_count_ = 0;
}

Status Client::flush_reports() {
  if (report_count_ == 0) return {};
  CACHALOT_TRY(wait_for_credit(1, 1));
  post_reports();
  return {};
}

void Client::post_reports() {
  UsesPayload uses{};
  uses.namespace_id = namespace_id();
  std::copy_n(reports_.begin(), report_count_, uses.uses);
  channel_.post({static_cast<std::uint8_t>(Op::kTouch), static_cast<std::uint16_t>(report_count_),
                 1, kIgnore},
                rpc::request_payload(uses));
  report_count_ = 0;
}

// --- Asking the keeper -------------------------------------------------------------------------

void Client::on_answer(const rpc::Answer& answer) {
  if (answer.tag == kIgnore) return;
  if (answer.tag == kGrants) return on_grant_answer(answer);
  if (answer.tag >= kFirstCommit && answer.tag < kFirstCall) {
    return on_commit_answer(commits_[answer.tag - kFirstCommit], answer);
  }
  if (answer.tag != call_tag_) return;  // of a call that was given up
  call_done_ = true;
  call_status_ = answer.status;
  std::copy_n(answer.payload.begin(), std::min(answer.payload.size(), call_payload_.size()),
              call_payload_.begin());
}

Status Client::wait_for(bool& flag) {
  return wait_for_keeper([&] { return flag; });
}

Status Client::wait_for_credit(std::uint32_t lines, std::uint32_t answer_lines) {
  if (channel_.has_credit(lines, answer_lines)) return {};
  poll();
  return wait_for_keeper([&] { return channel_.has_credit(lines, answer_lines); });
}

Status Client::call(Op op, const memory::Line& head, std::uint32_t answer_lines) {
  const CallTime::Scope scope = call_scope();
  // Attach and detach requests come from a client that is not attached.
  if (op != Op::kDetach && op != Op::kNamespace) CACHALOT_TRY(ensure_attached());
  CACHALOT_TRY(wait_for_credit(1, answer_lines));
  call_done_ = false;
  channel_.post({static_cast<std::uint8_t>(op), 0, answer_lines, ++call_tag_}, head);
  return wait_for(call_done_);
}

Status Client::status_of_call(const char* what) const {
  if (call_status_ == 0) return {};
  return Error::make(static_cast<Code>(call_status_), "the keeper refused to %s: %s", what,
                     code_name(static_cast<Code>(call_status_)));
}

Status Client::ping() {
  CACHALOT_TRY(call(Op::kPing));
  return status_of_call("answer a ping");
}

bool Client::post_ping() {
  if (!attached_ || !channel_.has_credit(1, 1)) return false;
  channel_.post({static_cast<std::uint8_t>(Op::kPing), 0, 1, kIgnore}, memory::Line{});
  return true;
}

bool Client::post_touch(const BlockUse& use) {
  if (!attached_ || !channel_.has_credit(1, 1)) return false;
  memory::Line head{};  // a UsesPayload, by words
  head.words[rpc::kRequestPayloadWord] = namespace_id() | std::uint64_t{use.block} << 32;
  head.words[rpc::kRequestPayloadWord + 1] = use.generation;
  channel_.post({static_cast<std::uint8_t>(Op::kTouch), 1, 1, kIgnore}, head);
  return true;
}

Result<std::uint32_t> Client::evict(const BlockHash& hash) {
  const EvictPayload wanted{namespace_id(), 0, hash.low, hash.high};
  CACHALOT_TRY(call(Op::kEvict, rpc::request_payload(wanted)));
  base::reach(FailPoint::kEvictAsked);
  if (call_status_ == static_cast<std::uint16_t>(Code::kNotFound)) {
    return Error::make(Code::kNotFound, "evict: block %s is not in the pool",
                       block_hash::to_hex(hash).c_str());
  }
  CACHALOT_TRY(status_of_call("evict a block"));
  EvictAnswer answer{};
  std::memcpy(&answer, call_payload_.data(), sizeof answer);
  return answer.evicted;
}

Result<std::uint32_t> Client::evict_everything() {
  const EvictPayload wanted{namespace_id(), 1, 0, 0};
  CACHALOT_TRY(call(Op::kEvict, rpc::request_payload(wanted)));
  CACHALOT_TRY(status_of_call("evict all blocks"));
  EvictAnswer answer{};
  std::memcpy(&answer, call_payload_.data(), sizeof answer);
  return answer.evicted;
}

Result<std::uint32_t> Client::fence(std::uint32_t client) {
  CACHALOT_TRY(call(Op::kFence, rpc::request_payload(FencePayload{client})));
  // Its own slot is served, but only because nothing is held there.
  const auto status = client == slot_ ? Code::kNotFound : static_cast<Code>(call_status_);
  if (status == Code::kBusy) {
    return Error::make(Code::kBusy, "client slot %u: is served, its process lives: stop it first",
                       client);
  }
  if (status == Code::kNotFound) {
    return Error::make(Code::kNotFound, "client slot %u: nothing is held there", client);
  }
  if (status == Code::kInvalidArgument) {
    return Error::make(Code::kInvalidArgument, "client slot %u: the pool's last one is %u", client,
                       access_.geometry.clients - 1);
  }
  CACHALOT_TRY(status_of_call("fence a client"));
  FenceAnswer answer{};
  std::memcpy(&answer, call_payload_.data(), sizeof answer);
  return answer.released;
}

Result<std::uint32_t> Client::fence_unknown() {
  return fence(kAllUnknown);
}

Status Client::stop_keeper() {
  CACHALOT_TRY(call(Op::kStop));
  return status_of_call("stop");
}

// The slot's lines are this client's from here on. Its own begin with zeros, where those of the last client are.
void Client::begin_to_count() {
  totals_ = SlotTotals::read(access_, slot_);
  totals_before_ = totals_.values();
  const std::lock_guard lock(renewal_.mutex);
  published_.emplace();
  published_->publish(access_.region, access_.layout.client_counters(slot_), ++counters_sequence_);
}

// Where they have changed.
void Client::publish_counters() {
  const std::lock_guard lock(renewal_.mutex);
  if (!published_ || has_left_) return;  // R1: another client may count there
  ClientCounters now = counters_.read();
  if (options_.add_counters) options_.add_counters(now);
  if (published_ == now) return;
  published_ = now;
  now.publish(access_.region, access_.layout.client_counters(slot_), ++counters_sequence_);
  now += totals_before_;
  totals_.publish(access_, slot_, now);
}

}  // namespace cachalot::pool

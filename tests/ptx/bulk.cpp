#include "ptx/bulk.h"

#include <algorithm>

#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

using Printed = unsigned long long;

bool overlap(std::uint64_t a, std::uint64_t a_bytes, std::uint64_t b, std::uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

constexpr std::uint32_t kBarrierBytes = 8;
constexpr std::uint32_t kMostArrivals = (1u << 20) - 1;
constexpr std::int64_t kMostPendingBytes = (1 << 20) - 1;

}  // namespace

// --- barriers

void Bulk::init(std::uint32_t thread, std::uint64_t barrier, std::uint32_t count) {
  check_alignment(barrier, kBarrierBytes);
  shared_.offset(barrier, kBarrierBytes);
  if (count == 0 || count > kMostArrivals) fail(Wrong::kRule, "a barrier for %u arrivals", count);
  check_shared(thread, barrier, kBarrierBytes, true);
  shared_.forget(barrier, kBarrierBytes);
  barriers_[barrier] = {count, count, 0, 0, thread, now_};
}

Bulk::Barrier& Bulk::find(std::uint64_t barrier) {
  check_alignment(barrier, kBarrierBytes);
  const auto found = barriers_.find(barrier);
  if (found == barriers_.end()) {
    fail(Wrong::kRule, "address %#llx is no barrier: nobody has initialised it",
         static_cast<Printed>(barrier));
  }
  return found->second;
}

void Bulk::look_at(Barrier& barrier) {
  if (barrier.bytes > kMostPendingBytes || barrier.bytes < -kMostPendingBytes) {
    fail(Wrong::kRule, "a barrier waits for %lld bytes: it counts to 2^20 - 1",
         static_cast<long long>(barrier.bytes));
  }
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.expected;
  ++barrier.phase;
}

void Bulk::arrive(std::uint64_t barrier, std::uint32_t expected_bytes) {
  Barrier& found = find(barrier);
  if (found.pending == 0) fail(Wrong::kRule, "more arrivals than the barrier was made for");
  found.bytes += expected_bytes;
  --found.pending;
  look_at(found);
}

bool Bulk::try_wait(std::uint64_t barrier, std::uint32_t parity) {
  Barrier& found = find(barrier);
  if (parity > 1) fail(Wrong::kRule, "parity %u", parity);
  // The phase that is going on, or the one before it, is the one that is meant.
  if (found.phase % 2 == parity) return false;
  if (mood_ == Mood::kRandom && rng_.chance(0.2)) return false;
  // What has arrived in phases that are over is seen from now on.
  std::erase_if(transfers_, [&](const Transfer& one) {
    return one.is_load && one.has_written && one.barrier == barrier && one.phase < found.phase;
  });
  return true;
}

void Bulk::fence(std::uint32_t thread, Fenced fenced) {
  ++now_;
  const auto is_covered = [&](const Written& one) { return one.thread == thread; };
  if (fenced != Fenced::kGlobal) {
    groups_[thread].fenced = now_;
    std::erase_if(shared_writes_, is_covered);
  }
  if (fenced != Fenced::kShared) std::erase_if(global_writes_, is_covered);
}

// --- transfers

void Bulk::check_transfer(std::uint64_t shared, std::uint64_t global, std::uint32_t bytes) {
  constexpr std::uint32_t kUnit = 16;
  if (bytes % kUnit != 0) fail(Wrong::kRule, "a transfer of %u bytes, no multiple of 16", bytes);
  check_alignment(shared, kUnit);
  check_alignment(global, kUnit);
  shared_.offset(shared, bytes);
  for (const auto& [at, barrier] : barriers_) {
    if (overlap(at, kBarrierBytes, shared, bytes)) fail(Wrong::kRule, "a transfer over a barrier");
  }
  check_fenced(shared_writes_, shared, bytes);
  check_fenced(global_writes_, global, bytes);
}

void Bulk::check_fenced(const std::vector<Written>& all, std::uint64_t at, std::uint64_t bytes) {
  for (const Written& one : all) {
    if (!overlap(one.at, one.bytes, at, bytes)) continue;
    fail(Wrong::kRule,
         "a transfer at %#llx of what thread %u has written by ordinary stores without a proxy "
         "fence",
         static_cast<Printed>(at), one.thread);
  }
}

// Transfers are in no order among themselves.
void Bulk::check_other_transfers(const Transfer& transfer) {
  for (const Transfer& one : transfers_) {
    const bool both_read_shared = !one.is_load && !transfer.is_load;
    const bool shares_stage = overlap(one.shared, one.bytes, transfer.shared, transfer.bytes) &&
                              !both_read_shared && !(one.read_was_seen && !one.is_load);
    if (shares_stage) {
      fail(Wrong::kRule, "a %s at %#llx of shared memory that a %s may still %s",
           transfer.is_load ? "load" : "store", static_cast<Printed>(transfer.shared),
           one.is_load ? "load" : "store", one.is_load ? "write" : "read");
    }
    const bool both_read_global = one.is_load && transfer.is_load;
    if (!both_read_global && overlap(one.global, one.bytes, transfer.global, transfer.bytes)) {
      fail(Wrong::kRule, "two transfers at %#llx of global memory, in no order",
           static_cast<Printed>(transfer.global));
    }
  }
}

void Bulk::load(std::uint32_t thread, std::uint64_t to, std::uint64_t from, std::uint32_t bytes,
                std::uint64_t barrier) {
  const Barrier& known = find(barrier);
  const auto fenced = groups_.find(known.thread);
  if (fenced == groups_.end() || fenced->second.fenced <= known.written) {
    fail(Wrong::kRule, "a transfer's barrier without a proxy fence behind its init");
  }
  check_transfer(to, from, bytes);
  Transfer transfer;
  transfer.is_load = true;
  transfer.thread = thread;
  transfer.bytes = bytes;
  transfer.shared = to;
  transfer.global = from;
  transfer.barrier = barrier;
  check_other_transfers(transfer);
  shared_.forget(to, bytes);
  transfers_.push_back(std::move(transfer));
  turn();
}

void Bulk::store(std::uint32_t thread, std::uint64_t to, std::uint64_t from, std::uint32_t bytes) {
  check_transfer(from, to, bytes);
  Transfer transfer;
  transfer.thread = thread;
  transfer.bytes = bytes;
  transfer.shared = from;
  transfer.global = to;
  transfer.group = groups_[thread].committed;
  check_other_transfers(transfer);
  ++groups_[thread].uncommitted;
  transfers_.push_back(std::move(transfer));
  turn();
}

void Bulk::commit(std::uint32_t thread) {
  Groups& groups = groups_[thread];
  ++groups.committed;
  groups.uncommitted = 0;
}

void Bulk::wait(std::uint32_t thread, std::uint32_t late, bool reads_only) {
  const std::uint64_t committed = groups_[thread].committed;
  const std::uint64_t before = committed > late ? committed - late : 0;
  for (Transfer& one : transfers_) {
    if (one.is_load || one.thread != thread || one.group >= before) continue;
    if (!one.has_read) read(one);
    one.read_was_seen = true;
    if (!reads_only && !one.has_written) complete(one);
  }
  if (reads_only) return;
  std::erase_if(transfers_, [&](const Transfer& one) {
    return !one.is_load && one.thread == thread && one.group < before;
  });
}

void Bulk::read(Transfer& transfer) {
  transfer.taken.resize(transfer.bytes);
  shared_.read(transfer.taken.data(), transfer.shared, transfer.bytes);
  transfer.has_read = true;
}

void Bulk::complete(Transfer& transfer) {
  std::byte* const global = global_.at(transfer.global, transfer.bytes);
  if (!transfer.is_load) {
    std::copy(transfer.taken.begin(), transfer.taken.end(), global);
  } else {
    shared_.write(transfer.shared, global, transfer.bytes);
    Barrier& barrier = find(transfer.barrier);
    transfer.phase = barrier.phase;
    barrier.bytes -= transfer.bytes;
    look_at(barrier);
  }
  transfer.has_read = transfer.has_written = true;
}

bool Bulk::advance(Transfer& transfer) {
  if (transfer.has_written) return false;
  if (!transfer.is_load && !transfer.has_read) {
    read(transfer);
  } else {
    complete(transfer);
  }
  return true;
}

void Bulk::happen() {
  if (mood_ == Mood::kLate) return;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    if (mood_ == Mood::kEarly) {
      while (advance(transfers_[i])) {
      }
    } else if (rng_.chance(0.3)) {
      advance(transfers_[rng_.below(transfers_.size())]);
    }
  }
}

bool Bulk::hurry() {
  std::vector<Transfer*> waiting;
  for (Transfer& one : transfers_) {
    if (one.is_load && !one.has_written) waiting.push_back(&one);
  }
  if (waiting.empty()) return false;
  return advance(*waiting[rng_.below(waiting.size())]);
}

void Bulk::end() {
  for (Transfer& one : transfers_) {
    if (one.is_load) fail(Wrong::kRule, "the block ends with a load that nobody has waited for");
    if (!one.read_was_seen) {
      fail(Wrong::kRule, "the block ends with a store that may still read its shared memory");
    }
    while (advance(one)) {
    }
  }
  transfers_.clear();
}

// --- ordinary accesses beside them

void Bulk::check_shared(std::uint32_t thread, std::uint64_t at, std::uint64_t bytes, bool writes) {
  for (const auto& [address, barrier] : barriers_) {
    if (overlap(address, kBarrierBytes, at, bytes)) {
      fail(Wrong::kRule, "address %#llx is a barrier: it has no bytes for others",
           static_cast<Printed>(at));
    }
  }
  for (const Transfer& one : transfers_) {
    const bool may_change = one.is_load || (writes && !one.read_was_seen);
    if (may_change && overlap(one.shared, one.bytes, at, bytes)) {
      fail(Wrong::kRule, "address %#llx of shared memory, which a transfer may still %s",
           static_cast<Printed>(at), one.is_load ? "write" : "read");
    }
  }
  if (writes) shared_writes_.push_back({at, bytes, now_, thread});
}

void Bulk::check_global(std::uint32_t thread, std::uint64_t at, std::uint64_t bytes, bool writes) {
  for (const Transfer& one : transfers_) {
    const bool conflicts = !one.is_load || writes;
    if (conflicts && overlap(one.global, one.bytes, at, bytes)) {
      fail(Wrong::kRule, "address %#llx of global memory, which a transfer may still %s",
           static_cast<Printed>(at), one.is_load ? "read" : "write");
    }
  }
  if (writes) global_writes_.push_back({at, bytes, now_, thread});
}

}  // namespace cachalot::ptx

// Where a thread goes, and where threads wait for each other: branches, barriers, lanes that meet.
#include <algorithm>

#include "ptx/block.h"
#include "ptx/operations.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

void branch(Thread& thread, const Instruction& i) {
  thread.next = static_cast<std::uint32_t>(thread.read(i.operand[0]));
}
void end(Thread& thread, const Instruction&) {
  thread.block.end(thread);
}
void trap(Thread&, const Instruction&) {
  fail(Wrong::kFault, "a trap");
}
void nothing(Thread&, const Instruction&) {}

template <std::size_t kOperands>
void barrier(Thread& thread, const Instruction& i) {
  const std::uint32_t threads = kOperands == 2 ? thread.get<std::uint32_t>(i.operand[1]) : 0;
  if (kOperands == 2 && threads == 0) fail(Wrong::kRule, "a barrier for no thread");
  thread.block.wait_at(thread, thread.get<std::uint32_t>(i.operand[0]), threads,
                       i.detail.mode != 0);
}

// --- lanes

enum class Meeting : std::uint8_t {
  kWait,
  kUp,
  kDown,
  kButterfly,
  kIndex,
  kAll,
  kAny,
  kUniform,
  kBallot,
  kSum,
  kLeast,
  kGreatest,
  kAnd,
  kOr,
  kXor
};

template <std::size_t kMask>
void meet(Thread& thread, const Instruction& i) {
  thread.block.meet(thread, i, thread.get<std::uint32_t>(i.operand[kMask]));
}

// @source PTX ISA: shfl.sync, its pseudo-code for the source lane
void shuffle(const std::vector<Thread*>& lanes, Thread& thread, std::vector<std::uint64_t>& out) {
  const Instruction& i = *thread.meeting;
  const auto lane = static_cast<std::int32_t>(thread.lane());
  const auto b = static_cast<std::int32_t>(thread.get<std::uint32_t>(i.operand[3]) & 0x1f);
  const std::uint32_t c = thread.get<std::uint32_t>(i.operand[4]);
  const auto segment = static_cast<std::int32_t>(c >> 8 & 0x1f);
  const auto clamp = static_cast<std::int32_t>(c & 0x1f);
  const std::int32_t first = lane & segment, last = (lane & segment) | (clamp & ~segment);
  std::int32_t from = 0;
  bool inside = false;
  switch (static_cast<Meeting>(i.detail.mode)) {
    case Meeting::kUp:
      from = lane - b;
      inside = from >= last;
      break;
    case Meeting::kDown:
      from = lane + b;
      inside = from <= last;
      break;
    case Meeting::kButterfly:
      from = lane ^ b;
      inside = from <= last;
      break;
    default:
      from = first | (b & ~segment);
      inside = from <= last;
  }
  if (!inside) from = lane;
  const auto other = std::find_if(lanes.begin(), lanes.end(), [from](const Thread* one) {
    return static_cast<std::int32_t>(one->lane()) == from;
  });
  if (other == lanes.end()) {
    fail(Wrong::kRule, "lane %d takes from lane %d, which is not there", lane, from);
  }
  out.push_back((*other)->get<std::uint32_t>((*other)->meeting->operand[2]));
  out.push_back(inside ? 1 : 0);
}

std::uint64_t vote(const std::vector<Thread*>& lanes, Meeting how) {
  std::uint32_t ballot = 0, mask = 0;
  for (Thread* const one : lanes) {
    mask |= 1u << one->lane();
    if (one->get<bool>(one->meeting->operand[1])) ballot |= 1u << one->lane();
  }
  if (how == Meeting::kBallot) return ballot;
  if (how == Meeting::kAll) return ballot == mask ? 1 : 0;
  if (how == Meeting::kAny) return ballot != 0 ? 1 : 0;
  return ballot == mask || ballot == 0 ? 1 : 0;
}

template <class T>
T reduce(const std::vector<Thread*>& lanes, Meeting how) {
  T out = lanes[0]->get<T>(lanes[0]->meeting->operand[1]);
  for (std::size_t k = 1; k < lanes.size(); ++k) {
    const T one = lanes[k]->get<T>(lanes[k]->meeting->operand[1]);
    switch (how) {
      case Meeting::kSum:
        out = static_cast<T>(static_cast<std::uint32_t>(out) + static_cast<std::uint32_t>(one));
        break;
      case Meeting::kLeast:
        out = std::min(out, one);
        break;
      case Meeting::kGreatest:
        out = std::max(out, one);
        break;
      case Meeting::kAnd:
        out = static_cast<T>(out & one);
        break;
      case Meeting::kOr:
        out = static_cast<T>(out | one);
        break;
      default:
        out = static_cast<T>(out ^ one);
    }
  }
  return out;
}

Detail mode(Meeting how, bool is_signed = false) {
  Detail detail;
  detail.mode = static_cast<std::uint8_t>(how);
  detail.is_signed = is_signed;
  return detail;
}

// --- windows

// From a state space to generic addresses and back; global ones are the same.
template <std::uint64_t kWindow>
void to_generic(Thread& thread, const Instruction& i) {
  thread.write(i.operand[0], thread.read(i.operand[1]) + kWindow);
}
template <std::uint64_t kWindow>
void from_generic(Thread& thread, const Instruction& i) {
  const std::uint64_t address = thread.read(i.operand[1]);
  if (!in_window(address, kWindow)) {
    fail(Wrong::kRule, "generic address %#llx is not of that state space",
         static_cast<unsigned long long>(address));
  }
  thread.write(i.operand[0], address - kWindow);
}
void to_global(Thread& thread, const Instruction& i) {
  const std::uint64_t address = thread.read(i.operand[1]);
  for (const std::uint64_t window : {kSharedWindow, kLocalWindow, kParameterWindow}) {
    if (in_window(address, window)) {
      fail(Wrong::kRule, "generic address %#llx is not global",
           static_cast<unsigned long long>(address));
    }
  }
  thread.write(i.operand[0], address);
}

void add_lanes(Table& table) {
  const std::string shuffled = "d32|d1 s32 s32 s32 s32";
  table.add("bar.warp.sync", "s32", meet<0>, mode(Meeting::kWait));
  table.add("shfl.sync.up.b32", shuffled, meet<5>, mode(Meeting::kUp));
  table.add("shfl.sync.down.b32", shuffled, meet<5>, mode(Meeting::kDown));
  table.add("shfl.sync.bfly.b32", shuffled, meet<5>, mode(Meeting::kButterfly));
  table.add("shfl.sync.idx.b32", shuffled, meet<5>, mode(Meeting::kIndex));
  table.add("vote.sync.all.pred", "d1 s1 s32", meet<2>, mode(Meeting::kAll));
  table.add("vote.sync.any.pred", "d1 s1 s32", meet<2>, mode(Meeting::kAny));
  table.add("vote.sync.uni.pred", "d1 s1 s32", meet<2>, mode(Meeting::kUniform));
  table.add("vote.sync.ballot.b32", "d32 s1 s32", meet<2>, mode(Meeting::kBallot));
  const std::pair<const char*, Meeting> sums[] = {
      {"add", Meeting::kSum}, {"min", Meeting::kLeast}, {"max", Meeting::kGreatest}};
  for (const auto& [name, how] : sums) {
    const std::string head = std::string("redux.sync.") + name;
    table.add(head + ".u32", "d32 s32 s32", meet<2>, mode(how));
    table.add(head + ".s32", "d32 s32 s32", meet<2>, mode(how, true));
  }
  table.add("redux.sync.and.b32", "d32 s32 s32", meet<2>, mode(Meeting::kAnd));
  table.add("redux.sync.or.b32", "d32 s32 s32", meet<2>, mode(Meeting::kOr));
  table.add("redux.sync.xor.b32", "d32 s32 s32", meet<2>, mode(Meeting::kXor));
}

}  // namespace

void exchange(const std::vector<Thread*>& lanes) {
  const auto how = static_cast<Meeting>(lanes[0]->meeting->detail.mode);
  if (how == Meeting::kWait) {
    for (Thread* const one : lanes) ++one->passed.meetings;
    // Lanes that were not there have nothing in order with these.
    if (lanes[0]->met_lanes != ~0u) lanes[0]->block.stop_looking_for_races();
    return;
  }
  if (how >= Meeting::kUp && how <= Meeting::kIndex) {
    std::vector<std::uint64_t> out;
    for (Thread* const one : lanes) shuffle(lanes, *one, out);
    for (std::size_t k = 0; k < lanes.size(); ++k) {
      lanes[k]->write(lanes[k]->meeting->operand[0], out[2 * k]);
      lanes[k]->write(lanes[k]->meeting->operand[1], out[2 * k + 1]);
    }
    return;
  }
  std::uint64_t result = 0;
  if (how <= Meeting::kBallot) {
    result = vote(lanes, how);
  } else if (lanes[0]->meeting->detail.is_signed) {
    result = static_cast<std::uint64_t>(std::int64_t{reduce<std::int32_t>(lanes, how)});
  } else {
    result = reduce<std::uint32_t>(lanes, how);
  }
  for (Thread* const one : lanes) one->write(one->meeting->operand[0], result);
}

void add_control(Table& table) {
  table.add("bra", "l", branch);
  table.add("bra.uni", "l", branch);
  table.add("ret", "", end);
  table.add("exit", "", end);
  table.add("trap", "", trap);
  Detail aligned;
  aligned.mode = 1;
  for (const char* const name :
       {"bar.sync", "bar.cta.sync", "barrier.sync.aligned", "barrier.cta.sync.aligned"}) {
    table.add(name, "s32", barrier<1>, aligned);
    table.add(name, "s32 s32", barrier<2>, aligned);
  }
  for (const char* const name : {"barrier.sync", "barrier.cta.sync"}) {
    table.add(name, "s32", barrier<1>);
    table.add(name, "s32 s32", barrier<2>);
  }
  // Instructions happen one after the other here, so there is nothing to be put in order.
  for (const char* const scope : {"cta", "gl", "sys"}) {
    table.add(std::string("membar.") + scope, "", nothing);
  }
  for (const char* const scope : {"cta", "gpu", "sys"}) {
    table.add(std::string("fence.acq_rel.") + scope, "", nothing);
    table.add(std::string("fence.sc.") + scope, "", nothing);
  }
  table.add("cvta.to.global.u64", "d64 s64", to_global);
  table.add("cvta.global.u64", "d64 s64", to_generic<0>);
  table.add("cvta.shared.u64", "d64 s64", to_generic<kSharedWindow>);
  table.add("cvta.to.shared.u64", "d64 s64", from_generic<kSharedWindow>);
  table.add("cvta.local.u64", "d64 s64", to_generic<kLocalWindow>);
  table.add("cvta.to.local.u64", "d64 s64", from_generic<kLocalWindow>);
  table.add("cvta.param.u64", "d64 s64", to_generic<kParameterWindow>);
  table.add("cvta.to.param.u64", "d64 s64", from_generic<kParameterWindow>);
  add_lanes(table);
}

}  // namespace cachalot::ptx

#include "ptx/block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "ptx/spaces.h"
#include "ptx/violation.h"

namespace cachalot::ptx {
namespace {

constexpr std::uint32_t kBarriers = 16;
constexpr std::uint64_t kMostTurn = 60;    // instructions that a thread does in one go
constexpr std::uint32_t kHopeless = 2000;  // waits in a row that failed
constexpr std::uint64_t kMostInstructions = 2'000'000'000;

std::string where(const Thread& thread, std::uint32_t block, std::uint32_t instruction) {
  const Kernel& kernel = thread.kernel();
  std::string out = kernel.source.name + ", block " + std::to_string(block) + ", thread " +
                    std::to_string(thread.number);
  if (instruction >= kernel.code.size()) return out;
  const Statement& at = kernel.source.statements[kernel.code[instruction].statement];
  return out + ", line " + std::to_string(at.line) + ", " + at.mnemonic;
}

}  // namespace

std::uint64_t Thread::run(std::uint64_t instructions) {
  const std::vector<Instruction>& code = kernel_.code;
  std::uint64_t done = 0;
  while (done < instructions && state == State::kRuns) {
    if (next >= code.size()) fail(Wrong::kRule, "runs behind the kernel's last instruction");
    const Instruction& instruction = code[next++];
    ++done;
    if (instruction.guarded && get<bool>(instruction.guard) == instruction.guard_negated) continue;
    instruction.run(*this, instruction);
  }
  return done;
}

void Thread::never_written(Slot slot) const {
  fail(Wrong::kRule, "reads %s, which this thread has not written", kernel_.slots[slot].c_str());
}

Block::Block(const Kernel& kernel, const Shape& shape, std::uint32_t number,
             const std::byte* parameters, GlobalMemory& global, Mood mood, base::Rng& random,
             const Watch& watch)
    : shared(kSharedBase,
             shape.dynamic_shared_bytes == 0 ? kernel.shared_bytes
                                             : kernel.dynamic_shared + shape.dynamic_shared_bytes,
             "shared"),
      bulk(shared, global, mood, random, kernel.has_bulk),
      rng(random),
      number_(number),
      kernel_(kernel),
      parameters_(parameters),
      global_(global),
      watch_(watch),
      races_(kernel.has_bulk ? 0 : shared.size()) {
  for (const auto& [at, bytes] : kernel.shared_holes) {
    if (at + bytes <= shared.size()) shared.add_hole(kSharedBase + at, bytes);
  }
  for (std::uint32_t i = 0; i < shape.threads(); ++i) {
    threads_.push_back(std::make_unique<Thread>(*this, kernel, i));
    set_special_registers(*threads_.back(), shape);
    running_.push_back(threads_.back().get());
  }
}

void Block::set_special_registers(Thread& thread, const Shape& shape) const {
  const auto part_of = [](std::uint32_t index, const std::array<std::uint32_t, 3>& of, char axis) {
    if (axis == 'x') return index % of[0];
    if (axis == 'y') return index / of[0] % of[1];
    return index / of[0] / of[1];
  };
  const std::uint32_t bit = 1u << thread.lane();
  for (const auto& [slot, name] : kernel_.special_registers) {
    const char axis = name.back();
    const std::string_view row = std::string_view(name).substr(0, name.size() - 2);
    std::uint32_t value = 0;
    if (row == "%tid") value = part_of(thread.number, shape.block, axis);
    if (row == "%ctaid") value = part_of(number_, shape.grid, axis);
    if (row == "%ntid") value = shape.block[static_cast<std::size_t>(axis - 'x')];
    if (row == "%nctaid") value = shape.grid[static_cast<std::size_t>(axis - 'x')];
    if (name == "%laneid") value = thread.lane();
    if (name == "%warpid") value = thread.warp();
    if (name == "%lanemask_eq") value = bit;
    if (name == "%lanemask_lt") value = bit - 1;
    if (name == "%lanemask_le") value = bit - 1 + bit;
    if (name == "%lanemask_gt") value = ~(bit - 1 + bit);
    if (name == "%lanemask_ge") value = ~(bit - 1);
    thread.write(slot, value);
  }
}

std::uint64_t Block::run() {
  std::uint64_t instructions = 0;
  while (!running_.empty()) {
    Thread& thread = *running_[rng.below(running_.size())];
    try {
      instructions += thread.run(1 + rng.below(kMostTurn));
    } catch (const Violation& violation) {
      throw Violation(violation.kind,
                      where(thread, number_, thread.next - 1) + ": " + violation.what());
    }
    bulk.turn();
    if (thread.state != Thread::State::kRuns) {
      running_.clear();
      for (const auto& one : threads_) {
        if (one->state == Thread::State::kRuns) running_.push_back(one.get());
      }
    }
    if (instructions > kMostInstructions) {
      fail(Wrong::kRule, "%s: has not ended after %llu instructions",
           where(thread, number_, 0).c_str(), static_cast<unsigned long long>(instructions));
    }
  }
  for (const auto& one : threads_) {
    if (one->state != Thread::State::kExited) nobody_goes_on(*one);
  }
  bulk.end();
  return instructions;
}

void Block::nobody_goes_on(const Thread& thread) const {
  fail(Wrong::kRule, "%s: waits for ever", where(thread, number_, thread.next - 1).c_str());
}

// --- waiting

void Block::look_at_barriers() {
  for (std::uint32_t barrier = 0; barrier < kBarriers && at_barriers_ != 0; ++barrier) {
    look_at_barrier(barrier);
  }
}

void Block::wait_at(Thread& thread, std::uint32_t barrier, std::uint32_t threads, bool is_aligned) {
  if (barrier >= kBarriers) fail(Wrong::kRule, "barrier %u of %u", barrier, kBarriers);
  if (threads % 32 != 0) fail(Wrong::kRule, "a barrier for %u threads, no whole warps", threads);
  thread.state = Thread::State::kAtBarrier;
  thread.barrier = barrier;
  thread.barrier_threads = threads;
  thread.aligned_at = is_aligned ? thread.next : 0;
  ++at_barriers_;
  look_at_barrier(barrier);
}

void Block::look_at_barrier(std::uint32_t barrier) {
  std::uint32_t alive = 0;
  std::vector<Thread*> there;
  for (const auto& one : threads_) {
    alive += one->state != Thread::State::kExited;
    if (one->state == Thread::State::kAtBarrier && one->barrier == barrier) {
      there.push_back(one.get());
    }
  }
  if (there.empty()) return;
  const std::uint32_t wanted = there[0]->barrier_threads;
  for (const Thread* const one : there) {
    if (one->barrier_threads == wanted) continue;
    fail(Wrong::kRule, "threads at barrier %u expect %u and %u threads", barrier, wanted,
         one->barrier_threads);
  }
  if (there.size() < (wanted == 0 ? alive : wanted)) return;
  for (std::size_t k = 1; k < there.size(); ++k) {
    const Thread &before = *there[k - 1], &one = *there[k];
    if (before.warp() != one.warp() || before.aligned_at == one.aligned_at) continue;
    fail(Wrong::kRule, "threads %u and %u of a warp come to an aligned barrier at different places",
         before.number, one.number);
  }
  at_barriers_ -= static_cast<std::uint32_t>(there.size());
  if (there.size() < alive) stop_looking_for_races();
  for (Thread* const one : there) {
    one->state = Thread::State::kRuns;
    ++one->passed.barriers;
  }
}

void Block::meet(Thread& thread, const Instruction& instruction, std::uint32_t lanes) {
  if ((lanes >> thread.lane() & 1) == 0) fail(Wrong::kRule, "a lane that is not in its own mask");
  thread.state = Thread::State::kMeets;
  thread.meeting = &instruction;
  thread.met_lanes = lanes;
  look_at_meeting(thread);
}

// Lanes that have ended, or never were, are not waited for.
// @source CUDA C++ programming guide: warp shuffle functions, __syncwarp
void Block::look_at_meeting(const Thread& thread) {
  std::vector<Thread*> there;
  bool all_are_there = true;
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t number = thread.warp() * 32 + lane;
    if (number >= threads_.size() || threads_[number]->state == Thread::State::kExited) continue;
    Thread& one = *threads_[number];
    const bool waits = one.state == Thread::State::kMeets;
    const bool is_wanted = (thread.met_lanes >> lane & 1) != 0;
    if (is_wanted && !waits) all_are_there = false;
    if (!waits || (!is_wanted && (one.met_lanes >> thread.lane() & 1) == 0)) continue;
    if (one.met_lanes != thread.met_lanes) {
      fail(Wrong::kRule, "lanes meet with masks %#x and %#x", thread.met_lanes, one.met_lanes);
    }
    if (one.meeting->run != thread.meeting->run ||
        one.meeting->detail.mode != thread.meeting->detail.mode) {
      fail(Wrong::kRule, "lanes %u and %u meet at different instructions", thread.lane(), lane);
    }
    there.push_back(&one);
  }
  if (!all_are_there) return;
  for (Thread* const one : there) one->state = Thread::State::kRuns;
  // Each takes from the registers of the others before one of them goes on.
  exchange(there);
}

void Block::end(Thread& thread) {
  thread.state = Thread::State::kExited;
  look_at_barriers();
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t number = thread.warp() * 32 + lane;
    if (number >= threads_.size() || threads_[number]->state != Thread::State::kMeets) continue;
    if ((threads_[number]->met_lanes >> thread.lane() & 1) != 0) look_at_meeting(*threads_[number]);
  }
}

void Block::waited_in_vain(Thread& thread) {
  if (++thread.failed_waits % 3 == 0 && bulk.hurry()) return;
  if (thread.failed_waits < kHopeless) return;
  for (const auto& one : threads_) {
    if (one->state == Thread::State::kRuns && one->failed_waits < kHopeless) return;
  }
  fail(Wrong::kRule, "waits for ever: nothing is under way that could end it");
}

// --- memory

namespace {

Detail::Space space_of(std::uint64_t& address) {
  if (in_window(address, kSharedWindow)) {
    address -= kSharedWindow;
    return Detail::Space::kShared;
  }
  if (in_window(address, kLocalWindow)) {
    address -= kLocalWindow;
    return Detail::Space::kLocal;
  }
  if (in_window(address, kParameterWindow)) {
    address -= kParameterWindow;
    return Detail::Space::kParameter;
  }
  return Detail::Space::kGlobal;
}

}  // namespace

void Block::load(Thread& thread, const Detail& how, std::uint64_t address, void* to,
                 std::uint64_t bytes) {
  check_alignment(address, bytes);
  Detail::Space space = how.space;
  if (space == Detail::Space::kGeneric) space = space_of(address);
  switch (space) {
    case Detail::Space::kGlobal:
      if (watch_) watch_(address, how, false);
      bulk.touch_global(thread.number, address, bytes, false);
      std::memcpy(to, global_.at(address, bytes), bytes);
      return;
    case Detail::Space::kShared:
      bulk.touch_shared(thread.number, address, bytes, false);
      shared.read(to, address, bytes);
      if (!how.is_atomic) races_.touch(thread.passed, address - kSharedBase, bytes, false);
      return;
    case Detail::Space::kLocal:
      return thread.local.read(to, address, bytes);
    default:
      break;
  }
  const std::uint64_t at = address - kParameterBase;
  if (address < kParameterBase || at + bytes > kernel_.parameter_bytes) {
    fail(Wrong::kRule, "%llu bytes at %lld of %llu bytes of parameters",
         static_cast<unsigned long long>(bytes), static_cast<long long>(at),
         static_cast<unsigned long long>(kernel_.parameter_bytes));
  }
  std::memcpy(to, parameters_ + at, bytes);
}

void Block::store(Thread& thread, const Detail& how, std::uint64_t address, const void* from,
                  std::uint64_t bytes) {
  check_alignment(address, bytes);
  Detail::Space space = how.space;
  if (space == Detail::Space::kGeneric) space = space_of(address);
  switch (space) {
    case Detail::Space::kGlobal:
      if (watch_) watch_(address, how, true);
      bulk.touch_global(thread.number, address, bytes, true);
      std::memcpy(global_.at(address, bytes), from, bytes);
      return;
    case Detail::Space::kShared:
      bulk.touch_shared(thread.number, address, bytes, true);
      shared.write(address, from, bytes);
      if (!how.is_atomic) races_.touch(thread.passed, address - kSharedBase, bytes, true);
      return;
    case Detail::Space::kLocal:
      return thread.local.write(address, from, bytes);
    default:
      fail(Wrong::kRule, "parameters are not written");
  }
}

// --- launches

Launched launch(const Kernel& kernel, const Shape& shape, const void* parameters, Reach reach,
                std::uint64_t seed, Mood mood, const Watch& watch) {
  if (shape.threads() > kernel.source.most_threads) {
    fail(Wrong::kRule, "%s: %u threads in a block, of at most %u", kernel.source.name.c_str(),
         shape.threads(), kernel.source.most_threads);
  }
  base::Rng rng(seed);
  GlobalMemory global(std::move(reach));
  std::vector<std::uint32_t> order(shape.blocks());
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  Launched out;
  for (const std::uint32_t number : order) {
    Block block(kernel, shape, number, static_cast<const std::byte*>(parameters), global, mood, rng,
                watch);
    out.instructions += block.run();
  }
  return out;
}

}  // namespace cachalot::ptx

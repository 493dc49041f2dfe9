// Random programs on real memory, with streams that lag behind: every block keeps the bytes that were
// written into it, whatever other streams still do to the memory that they gave back.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "device_memory/baseline/caching_allocator.h"
#include "device_memory/baseline/expandable_allocator.h"
#include "device_memory/memfd/memfd_backend.h"
#include "stitch/stitch_allocator.h"
#include "testing/device_memory/fake_events.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 4096;

std::uint64_t word_at(std::uint64_t number, std::uint64_t at) {
  return number * 1'000'003 + at;
}

void write(device_memory::Address address, std::uint64_t bytes, std::uint64_t number) {
  for (std::uint64_t at = 0; at + 8 <= bytes; at += kPage) {
    const std::uint64_t word = word_at(number, at);
    std::memcpy(reinterpret_cast<std::byte*>(address + at), &word, sizeof word);
  }
}

bool has(device_memory::Address address, std::uint64_t bytes, std::uint64_t number) {
  for (std::uint64_t at = 0; at + 8 <= bytes; at += kPage) {
    std::uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(address + at), sizeof word);
    if (word != word_at(number, at)) return false;
  }
  return true;
}

// One device with two streams, and a program that uses it.
class Machine {
 public:
  Machine(device_memory::Allocator& allocator, device_memory::FakeEvents& events)
      : allocator_(allocator), events_(events) {
    events_.on_wait = [this](gpu::StreamId stream) { do_late_work(stream); };
  }
  ~Machine() {
    events_.on_wait = [](gpu::StreamId) {};
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void allocate(std::uint64_t bytes, gpu::StreamId stream) {
    const Result<device_memory::Address> address = allocator_.allocate(bytes, stream);
    if (!address) {
      RC_ASSERT(address.error().code == Code::kNoSpace);
      return;
    }
    // In the order of the stream: what it was given before is done before the block is written.
    do_late_work(stream);
    write(*address, bytes, ++numbers_);
    RC_ASSERT(held_.emplace(*address, Held{bytes, numbers_, stream, false}).second);
  }

  void use_on_other(std::size_t which) {
    if (held_.empty()) return;
    auto& [address, held] = *std::next(held_.begin(), static_cast<long>(which % held_.size()));
    held.other_uses_it = true;
    RC_ASSERT(allocator_.use_on(address, 1 - held.stream).ok());
  }

  void free(std::size_t which) {
    if (held_.empty()) return;
    const auto it = std::next(held_.begin(), static_cast<long>(which % held_.size()));
    const auto [address, held] = *it;
    RC_ASSERT(has(address, held.bytes, held.number));
    late_[held.stream].push_back({address, held.bytes});
    if (held.other_uses_it) late_[1 - held.stream].push_back({address, held.bytes});
    held_.erase(it);
    RC_ASSERT(allocator_.free(address).ok());
  }

  void free_all() {
    while (!held_.empty()) free(0);
  }

  void finish(gpu::StreamId stream) {
    do_late_work(stream);
    events_.finish(stream);
  }

  void release() { RC_ASSERT(allocator_.release_cached().ok()); }

  void check() const {
    const Status status = allocator_.check();
    if (!status) RC_FAIL(status.error().message);
    for (const auto& [address, held] : held_) RC_ASSERT(has(address, held.bytes, held.number));
  }

 private:
  struct Held {
    std::uint64_t bytes;
    std::uint64_t number;
    gpu::StreamId stream;
    bool other_uses_it;
  };
  // Work that a stream was given and has not done yet: it writes into a block that was freed.
  struct LateWrite {
    device_memory::Address address;
    std::uint64_t bytes;
  };

  void do_late_work(gpu::StreamId stream) {
    for (const LateWrite& late : late_[stream]) write(late.address, late.bytes, 0);
    late_[stream].clear();
  }

  device_memory::Allocator& allocator_;
  device_memory::FakeEvents& events_;
  std::map<device_memory::Address, Held> held_;
  std::vector<LateWrite> late_[2];
  std::uint64_t numbers_ = 0;
};

std::uint64_t any_size() {
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      return *rc::gen::inRange<std::uint64_t>(0, kMiB);
    case 1:
      return *rc::gen::inRange<std::uint64_t>(1, 9) * 2 * kMiB;
    default:
      return *rc::gen::inRange<std::uint64_t>(kMiB, 20 * kMiB);
  }
}

void run_random_program(device_memory::Allocator& allocator, device_memory::FakeEvents& events) {
  Machine machine(allocator, events);
  const auto steps = *rc::gen::inRange(1, 100);
  for (int step = 0; step < steps; ++step) {
    const int what = *rc::gen::inRange(0, 100);
    if (what < 50) {
      machine.allocate(any_size(), *rc::gen::inRange<gpu::StreamId>(0, 2));
    } else if (what < 88) {
      machine.free(*rc::gen::arbitrary<std::size_t>());
    } else if (what < 92) {
      machine.use_on_other(*rc::gen::arbitrary<std::size_t>());
    } else if (what < 97) {
      machine.finish(*rc::gen::inRange<gpu::StreamId>(0, 2));
    } else {
      machine.release();
    }
    machine.check();
  }
}

// The same requests and frees again and again, so that they go where they were; what differs is how far the
// streams have come.
void run_repeated_program(device_memory::Allocator& allocator, device_memory::FakeEvents& events) {
  struct Step {
    std::uint64_t bytes;
    gpu::StreamId stream;
    bool frees;
    std::size_t which;
  };
  std::vector<Step> steps;
  const auto count = *rc::gen::inRange(9, 30);  // more than the sizes by which a place is known
  for (int i = 0; i < count; ++i) {
    steps.push_back({any_size(), *rc::gen::inRange<gpu::StreamId>(0, 2),
                     *rc::gen::inRange(0, 3) != 0, *rc::gen::arbitrary<std::size_t>()});
  }
  Machine machine(allocator, events);
  for (int round = 0; round < 5; ++round) {
    for (const Step& step : steps) {
      machine.allocate(step.bytes, step.stream);
      if (step.frees) machine.free(step.which);
      const int finished = *rc::gen::inRange(0, 6);
      if (finished < 2) machine.finish(static_cast<gpu::StreamId>(finished));
      machine.check();
    }
    machine.free_all();
  }
}

// Some programs meet the limit, and go on.
std::unique_ptr<device_memory::MemfdBackend> open_memory() {
  auto backend = *device_memory::MemfdBackend::open();
  backend->set_limit_bytes(*rc::gen::inRange<std::uint64_t>(8, 80) * 2 * kMiB);
  return backend;
}

// Some may buy much: in heaps as small as these the defaults hardly ever would.
StitchOptions any_budget() {
  StitchOptions options;
  if (*rc::gen::arbitrary<bool>()) return options;
  options.free_stitch_requests = *rc::gen::element<std::uint64_t>(3, 200);
  options.growth_divisor = *rc::gen::element<std::uint64_t>(1, 20);
  options.growth_piece_divisor = 1;
  return options;
}

RC_GTEST_PROP(StitchAllocator, RandomProgramsKeepTheirBytes, ()) {
  const auto backend = open_memory();
  device_memory::FakeEvents events;
  StitchOptions options = any_budget();
  options.stitched_limit_bytes = *rc::gen::inRange<std::uint64_t>(1, 200) * 2 * kMiB;
  options.frag_limit_bytes = *rc::gen::element<std::uint64_t>(0, 2 * kMiB, 16 * kMiB);
  const auto allocator = *StitchAllocator::create(*backend, events, options);
  run_random_program(*allocator, events);
  RC_ASSERT(allocator->stats().reserved_bytes == backend->physical_bytes());
}

RC_GTEST_PROP(StitchAllocator, RepeatedProgramsKeepTheirBytes, ()) {
  const auto backend = open_memory();
  device_memory::FakeEvents events;
  const auto allocator = *StitchAllocator::create(*backend, events, any_budget());
  run_repeated_program(*allocator, events);
  RC_ASSERT(allocator->stats().reserved_bytes == backend->physical_bytes());
}

RC_GTEST_PROP(CachingAllocator, RandomProgramsKeepTheirBytes, ()) {
  const auto backend = open_memory();
  device_memory::FakeEvents events;
  device_memory::CachingAllocator allocator(*backend, events);
  run_random_program(allocator, events);
  RC_ASSERT(allocator.stats().reserved_bytes == backend->physical_bytes());
}

RC_GTEST_PROP(ExpandableAllocator, RandomProgramsKeepTheirBytes, ()) {
  const auto backend = open_memory();
  device_memory::FakeEvents events;
  device_memory::ExpandableAllocator allocator(*backend, events);
  run_random_program(allocator, events);
  RC_ASSERT(allocator.stats().reserved_bytes == backend->physical_bytes());
}

}  // namespace
}  // namespace cachalot::stitch

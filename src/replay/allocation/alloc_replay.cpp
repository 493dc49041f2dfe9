#include "replay/allocation/alloc_replay.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "base/clock.h"

namespace cachalot::replay {
namespace {

Result<std::uint64_t> scaled(std::uint64_t bytes, double scale) {
  if (scale == 1) return bytes;
  const double wanted = static_cast<double>(bytes) * scale;
  if (wanted <= static_cast<double>(trace::kMaxAllocBytes)) {
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
  }
  return Error::make(Code::kInvalidArgument,
                     "scale: %g times a block of %" PRIu64 " bytes, expected at most %" PRIu64,
                     scale, bytes, trace::kMaxAllocBytes);
}

class Run {
 public:
  Run(const AllocEvents& events, device_memory::Allocator& allocator,
      device_memory::Backend& backend, const AllocReplayOptions& options)
      : events_(events),
        allocator_(allocator),
        backend_(backend),
        options_(options),
        memory_(options.memory != nullptr ? *options.memory : own_memory_),
        blocks_(events.slots()) {}

  Result<AllocReport> run() {
    const device_memory::CallCounts before = backend_.counts();
    const std::uint64_t start_ns = base::SteadyClock::read();
    const auto& events = events_.events();
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (i == events.size() / 2) half_ = snapshot("second half");
      CACHALOT_TRY(execute(events[i]));
      if (options_.timeline_samples != 0) sample(i);
      if (options_.progress && i % kProgressEvery == 0) options_.progress(i);
    }
    report_.wall_s = static_cast<double>(base::SteadyClock::read() - start_ns) * 1e-9;
    for (const Block& block : blocks_) CACHALOT_TRY(check(block));
    close_iteration();
    report_.events = events.size();
    report_.stats = allocator_.stats();
    report_.calls = backend_.counts() - before;
    report_.second_half = since(half_);
    return std::move(report_);
  }

 private:
  static constexpr std::size_t kProgressEvery = 1 << 14;

  struct Block {
    device_memory::Address address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;
  };

  Status execute(const AllocEvents::Event& event) {
    switch (event.kind) {
      case trace::AllocKind::kAllocate:
        return allocate(event);
      case trace::AllocKind::kFree:
        return free(event);
      case trace::AllocKind::kMark:
        close_iteration();
        iteration_ = snapshot(events_.marks()[event.bytes]);
        is_in_iteration_ = true;
        return {};
    }
    return {};
  }

  Status allocate(const AllocEvents::Event& event) {
    const std::uint64_t start_ns = base::SteadyClock::read();
    const Result<device_memory::Address> address = allocator_.allocate(event.bytes, event.stream);
    report_.allocate_ns.record(base::SteadyClock::read() - start_ns);
    if (!address && address.error().code != Code::kNoSpace) return address.error();
    if (!address) return {};
    Block& block = blocks_[event.slot];
    block = {*address, event.bytes, ++number_};
    if (options_.verify == Verify::kOff) return {};
    return memory_.write(block.address, block.bytes, block.number, options_.verify);
  }

  Status free(const AllocEvents::Event& event) {
    Block& block = blocks_[event.slot];
    if (block.address == 0) return {};
    CACHALOT_TRY(check(block));
    const std::uint64_t start_ns = base::SteadyClock::read();
    const Status freed = allocator_.free(block.address);
    report_.free_ns.record(base::SteadyClock::read() - start_ns);
    block = {};
    return freed;
  }

  Status check(const Block& block) {
    if (options_.verify == Verify::kOff || block.address == 0) return {};
    ++report_.checked_blocks;
    CACHALOT_TRY_ASSIGN(
        const std::uint64_t wrong,
        memory_.count_wrong(block.address, block.bytes, block.number, options_.verify));
    report_.wrong_blocks += wrong != 0;
    return {};
  }

  void sample(std::size_t event) {
    const std::size_t all = events_.events().size();
    const std::size_t stretch = (all + options_.timeline_samples - 1) / options_.timeline_samples;
    if (event % stretch == 0) report_.timeline.emplace_back();
    const device_memory::AllocatorStats stats = allocator_.stats();
    AllocSample& sample = report_.timeline.back();
    sample.events = event + 1;
    sample.reserved_bytes = std::max(sample.reserved_bytes, stats.reserved_bytes);
    sample.live_bytes = std::max(sample.live_bytes, stats.live_bytes);
  }

  AllocPhase snapshot(const std::string& name) const {
    const device_memory::AllocatorStats stats = allocator_.stats();
    return {name, stats.allocations, stats.driver_allocations, stats.stitches,
            stats.reserved_bytes};
  }
  AllocPhase since(const AllocPhase& before) const {
    AllocPhase phase = snapshot(before.name);
    phase.allocations -= before.allocations;
    phase.driver_allocations -= before.driver_allocations;
    phase.stitches -= before.stitches;
    return phase;
  }
  void close_iteration() {
    if (is_in_iteration_) report_.iterations.push_back(since(iteration_));
    is_in_iteration_ = false;
  }

  const AllocEvents& events_;
  device_memory::Allocator& allocator_;
  device_memory::Backend& backend_;
  const AllocReplayOptions& options_;
  OwnMemory own_memory_;
  PatternMemory& memory_;
  std::vector<Block> blocks_;  // by slot
  std::uint64_t number_ = 0;
  AllocPhase half_, iteration_;
  bool is_in_iteration_ = false;
  AllocReport report_;
};

}  // namespace

Result<AllocEvents> AllocEvents::read(const std::string& path) {
  CACHALOT_TRY_ASSIGN(trace::AllocTrace trace, trace::AllocTrace::open(path));
  AllocEvents events;
  trace::AllocEvent event;
  for (;;) {
    CACHALOT_TRY_ASSIGN(const bool more, trace.next(event));
    if (!more) break;
    Event row{event.bytes, event.slot, event.stream, event.kind};
    if (event.kind == trace::AllocKind::kMark) {
      row.bytes = events.marks_.size();
      events.marks_.emplace_back(event.text);
    } else {
      events.slots_ = std::max(events.slots_, event.slot + 1);
    }
    events.events_.push_back(row);
  }
  CACHALOT_TRY(events.scale(1));
  return events;
}

Status AllocEvents::scale(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    return Error::make(Code::kInvalidArgument, "scale: %g, expected a number above 0", factor);
  }
  std::uint64_t live_bytes = 0;
  peak_live_bytes_ = 0;
  for (Event& event : events_) {
    if (event.kind == trace::AllocKind::kMark) continue;
    CACHALOT_TRY_ASSIGN(event.bytes, scaled(event.bytes, factor));
    if (event.kind == trace::AllocKind::kFree) {
      live_bytes -= event.bytes;
    } else if (__builtin_add_overflow(live_bytes, event.bytes, &live_bytes)) {
      return Error::make(Code::kInvalidArgument, "scale: %g makes the live bytes exceed 64 bits",
                         factor);
    }
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes);
  }
  return {};
}

Result<AllocReport> replay_allocations(const AllocEvents& events,
                                       device_memory::Allocator& allocator,
                                       device_memory::Backend& backend,
                                       const AllocReplayOptions& options) {
  return Run(events, allocator, backend, options).run();
}

}  // namespace cachalot::replay

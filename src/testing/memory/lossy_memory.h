// A pool's devices shared by simulated hosts with incoherent caches: a world for tests of the
// pool protocol, in one thread and from one seed.
//
//   Scheduler scheduler(seed, adversary(Mood::kNasty).pace);
//   LossyMemory memory(scheduler, {.devices = 1, .bytes_each = 4 << 20});
//   LossyHost& a = memory.add_host();  LossyHost& b = memory.add_host();
//   scheduler.add("writer", [&] { … a.write_line(a.view().bases[0], line); … });
//   scheduler.add("reader", [&] { … });
//   scheduler.run(1'000'000);
//
// Every access is a tick, at which the adversary may act and another fiber may go on. Outside
// fibers accesses work too, and nothing else runs meanwhile.
// The model, and why it is fair, is in docs/design/memory.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "testing/memory/adversary.h"
#include "testing/memory/lossy_device.h"
#include "testing/memory/lossy_host.h"
#include "testing/memory/scheduler.h"

namespace cachalot::memory {

// What happened, to show that a test met what it was meant to meet.
struct LossyCounts {
  std::uint64_t lines_written = 0;
  std::uint64_t lines_loaded = 0;
  std::uint64_t loaded_from_cache = 0;  // of these: a prefetch was faster, or stale where broken
  std::uint64_t split_loads = 0;        // others ran between two words of a line
  std::uint64_t prefetched = 0;
  std::uint64_t evicted = 0;
  std::uint64_t accesses() const { return lines_written + lines_loaded; }
};

class LossyMemory {
 public:
  struct Options {
    std::uint32_t devices = 1;
    std::uint64_t bytes_each = 0;  // a multiple of 64
    Adversary adversary = memory::adversary(Mood::kNormal);
  };
  LossyMemory(Scheduler& scheduler, const Options& options);

  // @lifetime  as long as this object
  LossyHost& add_host();

  // The true bytes: what is on the device, whatever hosts believe. The lines of device d begin at
  // d * bytes_each / 64.
  LossyDevice& device() { return device_; }
  const Options& options() const { return options_; }
  LossyCounts& counts() { return counts_; }
  base::Rng& rng() { return rng_; }
  Scheduler& scheduler() { return scheduler_; }

  // A hash of all switches, stores and loads so far: equal for equal seeds.
  std::uint64_t fingerprint() const {
    return base::mix64(device_.fingerprint() ^ base::mix64(scheduler_.fingerprint()));
  }

  // One step in which anything may happen.
  void tick() {
    if (--until_event_ == 0) [[unlikely]]
      event();
    scheduler_.step();
  }

 private:
  void event();

  Scheduler& scheduler_;
  Options options_;
  base::Rng rng_;
  LossyDevice device_;
  std::vector<std::unique_ptr<LossyHost>> hosts_;
  LossyCounts counts_;
  std::uint64_t until_event_ = 1;
};

}  // namespace cachalot::memory

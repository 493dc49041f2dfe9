// A gather or scatter that was launched: to be asked about, and waited for.
//
// 1. wait() is the end of a copy: for a gather it does what the host owes (flush, order), so the block
//    may be committed only after it; after a scatter the caller validates (R6), and nothing computed
//    from the bytes leaves the step before.
// 2. If wait() fails, the device's state is unknown: a gather may still store. Its blocks are not given
//    back; the process detaches without vouching, or ends, and they are freed on evidence.
//
// @threads  one at a time
#pragma once

#include <cachalot/result.h>

#include <memory>

#include "kv/cuda/launch_slots.h"
#include "kv/fused/host_part.h"

namespace cachalot::kv {

// How a thread waits for the device.
enum class WaitBy {
  // Sleeps until shortly before the copy can be done, then asks for a while: the driver wakes a sleeping thread some
  // 100 us late (H200, in a virtual machine), as long as 5 MB take. For the engine's own thread, that has nothing else
  // to do.
  kAsking,
  // At once. For threads beside it: each question takes the driver's lock, which launches wait for (vLLM pull
  // request 47081).
  kSleeping,
};

class PendingCopy {
 public:
  PendingCopy(PendingCopy&&) noexcept = default;
  PendingCopy& operator=(PendingCopy&&) = delete;
  // Waits if no wait has happened; a failure is then not reported.
  ~PendingCopy();

  // Whether wait() would not block. @errors kIo: the device failed @cost one call of the driver
  Result<bool> is_done();
  // Blocks until the device has copied, then does the host's part. A second call says the same again.
  // @errors kIo: the device failed
  Status wait(WaitBy by = WaitBy::kAsking);

 private:
  friend class CudaEngine;
  struct Work {
    const CudaDevice* device;
    LaunchSlots* slots;
    memory::Domain* domain;  // null: the host owes nothing for its caches
    Direction direction;
    HostPart host;
    std::uint64_t bytes = 0;     // that it copies, without the host's part
    std::uint64_t begin_ns = 0;  // SteadyClock, when it was launched
  };
  // A copy of nothing.
  PendingCopy() = default;
  PendingCopy(Work work, std::unique_ptr<LaunchSlot> slot)
      : work_(std::move(work)), slot_(std::move(slot)) {}

  Work work_{};
  std::unique_ptr<LaunchSlot> slot_;  // null: it was waited for
  Status outcome_;
};

}  // namespace cachalot::kv

// For tests: a machine with some GPUs, behind the driver's table. It keeps CUDA's rules by itself and in
// the plainest way, so that a rule that AddressBook forgets is a call refused here.
//
// Work is not done here, only ordered: a stream is busy from launch() to finish(), and an event is done
// when all is finished that was launched on its stream before it was recorded.
//
// A function of the table has no object, so there is one machine at a time: the FakeMachine that lives.
//
// @threads the driver's functions may be called by any
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "vmm/cuda/driver.h"

namespace cachalot::vmm::cuda {

class FakeMachine {
 public:
  static constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;

  FakeMachine();
  ~FakeMachine();
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;
  Driver driver() const;

  // The machine as a test wants it, before it is used.
  int devices = 3;
  std::uint64_t memory_bytes = std::uint64_t{1} << 40;
  std::set<int> missing_attributes;         // of all devices
  std::set<std::pair<int, int>> strangers;  // (device, peer) without access
  std::map<std::string, int> failing;       // what these functions return, if not 0

  // Streams, by any number; 0 is the default one.
  void launch(std::uint64_t stream);
  void finish(std::uint64_t stream);  // all that was launched on it
  bool is_idle(std::uint64_t stream) const;
  void set_capturing(std::uint64_t stream, bool capturing);
  // What happens while somebody waits for an event that is not done: by default all work is done.
  std::function<void()> on_wait;
  // The process ends, and the driver has ended before: nothing works any more.
  void deinitialize();

  // What was asked of it.
  AllocationProperties last_properties;
  std::vector<AccessDescription> last_access;
  std::uint64_t access_calls = 0;
  std::uint64_t refused = 0;          // calls that CUDA would refuse
  std::uint64_t without_context = 0;  // calls of threads that have none

  // What there is; nothing after a backend is gone.
  std::uint64_t ranges() const { return ranges_.size(); }
  std::uint64_t handles() const { return handles_.size(); }
  std::uint64_t mappings() const { return mappings_.size(); }
  std::uint64_t used_bytes() const {
    const std::lock_guard lock(mutex_);
    return used_bytes_;
  }
  std::uint64_t events() const { return events_.size(); }
  int contexts = 0;  // retained
  int waits = 0;     // for events that were not done
  std::uint64_t recorded_in_capture = 0;
  std::uint64_t of_another_device = 0;  // events and streams used with another device's context

 private:
  friend struct FakeCalls;
  struct Allocation {
    std::uint64_t bytes = 0;
    std::uint64_t mappings = 0;
    bool released = false;
  };
  struct Mapping {
    std::uint64_t bytes = 0;
    AllocationHandle handle = 0;
  };

  struct Work {
    std::uint64_t launched = 0, finished = 0;
    bool capturing = false;
  };
  struct Recorded {
    int device = 0;
    std::uint64_t stream = 0;
    std::uint64_t launched = 0;  // on the stream, when the event was recorded
  };

  int invalid();
  int entered(const char* function);
  void drop(std::map<AllocationHandle, Allocation>::iterator allocation);
  // Whether the bytes are whole mappings side by side.
  bool is_mapped(DevicePointer at, std::uint64_t bytes) const;
  bool is_done(const Recorded& event) const;
  int current_device() const;
  // Null: there is no such event, or it is another device's.
  Recorded* find_event(Event event);

  static constexpr int kMostDevices = 16;
  std::array<char, kMostDevices> context_of_{};  // their addresses are the devices' contexts
  mutable std::mutex mutex_;
  std::map<DevicePointer, std::uint64_t> ranges_;
  std::map<AllocationHandle, Allocation> handles_;
  std::map<DevicePointer, Mapping> mappings_;
  std::map<std::uint64_t, Work> streams_;
  std::map<std::uint64_t, Recorded> events_;
  std::uint64_t next_event_ = 1;
  std::uint64_t used_bytes_ = 0;
  bool ended_ = false;
  DevicePointer next_range_ = DevicePointer{0x7f} << 40;
  AllocationHandle next_handle_ = 1000;
};

}  // namespace cachalot::vmm::cuda

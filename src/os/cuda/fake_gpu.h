// For tests: a machine with some GPUs, behind the driver's table. It keeps CUDA's rules by itself and in
// the plainest way, so that a rule that AddressBook forgets is a call refused here.
//
// A function of the table has no object, so there is one machine at a time: the FakeMachine that lives.
//
// @threads the driver's functions may be called by any
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "os/cuda/driver.h"

namespace cachalot::os::cuda {

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
  std::uint64_t used_bytes() const { return used_bytes_; }
  int contexts = 0;  // retained

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

  int invalid();
  int entered(const char* function);
  void drop(std::map<AllocationHandle, Allocation>::iterator allocation);
  // Whether the bytes are whole mappings side by side.
  bool is_mapped(DevicePointer at, std::uint64_t bytes) const;

  std::mutex mutex_;
  std::map<DevicePointer, std::uint64_t> ranges_;
  std::map<AllocationHandle, Allocation> handles_;
  std::map<DevicePointer, Mapping> mappings_;
  std::uint64_t used_bytes_ = 0;
  DevicePointer next_range_ = DevicePointer{0x7f} << 40;
  AllocationHandle next_handle_ = 1000;
};

}  // namespace cachalot::os::cuda

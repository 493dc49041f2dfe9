// For tests: a machine with some GPUs, behind the driver's table. It keeps CUDA's rules by itself and in
// the plainest way, so that a rule that AddressBook forgets is a call refused here.
//
// Work of streams is done as late as CUDA may do it: when a caller waits for it, or a step at a time when
// a caller asks whether it is done. So a caller that reads a copy's target, or reuses its source, too early is
// seen. A kernel is a function of the test's that is run on the arguments of its launch. Host memory that
// is registered has another address for the device, as it may have in CUDA. A test may also say itself how
// far a stream is: it is busy from begin() to finish(), and no event recorded in between is done before.
//
// A function of the table has no object, so there is one machine at a time: the FakeMachine that lives.
//
// @threads the driver's functions may be called by any
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gpu/driver.h"

namespace cachalot::gpu {

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
  std::map<std::string, int> passing;       // so many calls of those work before they fail
  std::size_t failing_copy = kNoCopy;       // of a batch that fails
  // What the driver answers about a stream that was destroyed; and whether it still names its context.
  int of_destroyed_streams = kInvalidHandle;
  bool knows_destroyed_streams = false;

  int compute_major = 9, multiprocessors = 132;
  int most_shared_bytes = 227 * 1024;  // that a kernel may ask for
  bool has_batches = true;             // a driver of CUDA 12.8 or later

  struct Launch {
    std::uint32_t blocks = 0, threads = 0, shared_bytes = 0;
  };
  // What a module has, by name: the bytes of its parameters, where each of them is among these, and what it
  // does. It reaches memory by reach(), and is run with the machine's lock held.
  struct Kernel {
    std::size_t argument_bytes = 0;
    std::function<void(const void* argument, const Launch& launch)> run;
    struct Parameter {
      std::size_t offset = 0, bytes = 0;
    };
    std::vector<Parameter> parameters = {};  // none: one, of all the bytes
    // of a launch; the driver's caller may ask for more
    std::uint32_t most_shared_bytes = 48 * 1024;
  };
  std::map<std::string, Kernel> kernels;
  // Where the bytes are that a device's address stands for; null, and a fault counted, where the device
  // would not reach all of them. What is mapped lies together in one mapping only.
  std::byte* reach(DevicePointer at, std::uint64_t bytes);

  // Takes memory of the process for a device's. It must not be freed while the machine is used.
  void adopt(void* memory, std::uint64_t bytes, int device);

  // Streams, by any number; 0 is the default one.
  void begin(std::uint64_t stream);
  void finish(std::uint64_t stream);  // all that was begun on it
  bool is_idle(std::uint64_t stream) const;
  void set_capturing(std::uint64_t stream, bool capturing);
  void destroy(std::uint64_t stream);  // what was begun on it goes on
  // What happens while a caller waits for an event that is not done: by default all work is done.
  std::function<void()> on_wait;
  // No event is ever done, and a wait for one returns this.
  void fail_waits(int result) {
    failing["event_query"] = kNotReady;
    failing["event_synchronize"] = result;
  }
  // The process ends, and the driver has ended before: nothing works any more.
  void deinitialize();

  // What was asked of it.
  AllocationProperties last_properties;
  std::vector<AccessDescription> last_access;
  std::uint64_t access_calls = 0;
  std::uint64_t refused = 0;          // calls that CUDA would refuse
  std::uint64_t without_context = 0;  // calls of threads that have none
  std::uint64_t faults = 0;           // of kernels and copies
  std::vector<Launch> launches;
  std::uint64_t copies = 0;          // of the copy engine, one a call
  std::vector<std::size_t> batches;  // of the copy engine: the copies of each call
  std::size_t launches_and_batches() const { return launches.size() + batches.size(); }
  std::uint64_t pageable_copies = 0;  // from memory that is not page-locked: not asynchronous

  // What there is; nothing after a backend is gone.
  std::uint64_t ranges() const { return ranges_.size(); }
  std::uint64_t handles() const { return handles_.size(); }
  std::uint64_t mappings() const { return mappings_.size(); }
  std::uint64_t used_bytes() const {
    const std::lock_guard lock(mutex_);
    return used_bytes_;
  }
  std::uint64_t events() const { return events_.size(); }
  std::uint64_t allocations() const { return memory_.size(); }  // device's, and page-locked
  std::uint64_t registrations() const { return registered_.size(); }
  int contexts = 0;  // retained, of all devices
  int modules = 0, streams = 0;
  int waits = 0;  // for events that were not done
  static constexpr int kGreatestPriority = -5;
  int last_priority = 0;  // of a stream that was created with one
  std::uint64_t recorded_in_capture = 0;
  std::uint64_t of_another_device = 0;  // events and streams used with another device's context

 private:
  friend struct FakeCalls;
  friend struct FakeStreamCalls;
  struct Allocation {
    std::uint64_t bytes = 0;
    std::uint64_t mappings = 0;
    bool released = false;
    std::byte* host = nullptr;  // from the first access on
  };
  struct Mapping {
    std::uint64_t bytes = 0;
    AllocationHandle handle = 0;
    int access = 0;  // as in AccessDescription
  };

  // What a test says of a stream.
  struct Work {
    std::uint64_t launched = 0, finished = 0;
    bool capturing = false;
  };
  // What is done on a stream, in order. An event that was recorded is a place in the queue.
  struct Queue {
    std::deque<std::function<int()>> work;
    std::uint64_t done = 0;
  };
  struct Memory {
    std::uint64_t bytes = 0;
    std::byte* host = nullptr;
    bool is_host = false;
    int device = 0;
    bool is_portable = false;  // registered: for all devices
    bool is_adopted = false;   // not the machine's to free
  };
  struct Recorded {
    int device = 0;
    std::uint64_t stream = 0;
    std::uint64_t launched = 0;  // on the stream, when the event was recorded
    std::uint64_t at = 0;        // done when so much of the queue is
  };

  void add_streams(Driver& driver) const;
  int advance(Stream stream, std::uint64_t until);
  std::byte* reach_mapped(DevicePointer at, std::uint64_t bytes);
  int move(DevicePointer to, DevicePointer from, std::uint64_t bytes);

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
  std::array<int, kMostDevices> retained_{};
  mutable std::mutex mutex_;
  std::map<DevicePointer, std::uint64_t> ranges_;
  std::map<AllocationHandle, Allocation> handles_;
  std::map<DevicePointer, Mapping> mappings_;
  std::map<DevicePointer, Memory> memory_;      // allocated
  std::map<DevicePointer, Memory> registered_;  // by the device's address
  std::map<Stream, Queue> queues_;
  int failed_ = 0;  // a kernel or copy did; from then on everything does
  std::map<std::uint64_t, Work> streams_;
  std::set<std::uint64_t> destroyed_;
  std::map<std::uint64_t, Recorded> events_;
  std::uint64_t next_event_ = 1;
  std::uint64_t used_bytes_ = 0;
  bool ended_ = false;
  DevicePointer next_range_ = DevicePointer{0x7f} << 40;
  AllocationHandle next_handle_ = 1000;
};

}  // namespace cachalot::gpu

// The GPUs that have a client's caches. A GPU is opened with the first cache on it. The first GPU registers all
// devices of the pool; the others share the registration. The mappings belong to the session and do not move.
//
// 1. A GPU is closed before the pool is unmapped, and after the caches on it.
// 2. An asynchronous copy runs on a stream of the library, after a place in the caller's stream that the calling
//    thread marks. So it runs after all work that was on the caller's stream at the call, does not wait for
//    later work, and is not captured into a graph.
// 3. After kIo the GPU is not used any more. The library keeps what the copy may access (mapping, device, launch
//    memory) until the process ends. The caller must keep the tensors: check_released() returns kIo.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/driver.h"
#include "kv/cuda/cuda_device.h"
#include "memory/pool_view.h"

namespace cachalot::kv {

class Gpu;

// A place in a stream: after all work that is on it now. @threads one at a time
class StreamMark {
 public:
  StreamMark() = default;  // marks nothing
  StreamMark(StreamMark&& from) noexcept
      : gpu_(std::exchange(from.gpu_, nullptr)), event_(from.event_) {}
  StreamMark& operator=(StreamMark&&) = delete;
  ~StreamMark();

 private:
  friend class Gpu;
  StreamMark(const Gpu* gpu, gpu::Event event) : gpu_(gpu), event_(event) {}
  const Gpu* gpu_ = nullptr;
  gpu::Event event_ = nullptr;
};

// A library stream, used by one call at a time. A stream with work that was not waited for is not reused,
// because the next call would wait for that work. @threads one at a time
class StreamLoan {
 public:
  StreamLoan() = default;  // no stream
  StreamLoan(StreamLoan&& from) noexcept
      : gpu_(std::exchange(from.gpu_, nullptr)), stream_(from.stream_), is_empty_(from.is_empty_) {}
  StreamLoan& operator=(StreamLoan&&) = delete;
  ~StreamLoan();
  gpu::Stream stream() const { return stream_; }
  // All its work was waited for.
  void note_empty() { is_empty_ = true; }

 private:
  friend class Gpu;
  StreamLoan(Gpu* gpu, gpu::Stream stream) : gpu_(gpu), stream_(stream) {}
  Gpu* gpu_ = nullptr;
  gpu::Stream stream_ = nullptr;
  bool is_empty_ = false;
};

// The stream of an asynchronous call: a library stream that waits for a place in the caller's stream. The first
// copy borrows it, so a call that copies nothing puts nothing on any stream. @threads one at a time
class StreamBehind {
 public:
  StreamBehind(Gpu& gpu, StreamMark mark) : gpu_(gpu), mark_(std::move(mark)) {}
  // @errors as Gpu::borrow_behind
  Result<gpu::Stream> stream();
  // All copies so far were waited for.
  void note_empty() {
    if (loan_) loan_->note_empty();
  }

 private:
  Gpu& gpu_;
  const StreamMark mark_;
  std::optional<StreamLoan> loan_;
};

class Gpu {
 public:
  Gpu(int ordinal, std::unique_ptr<CudaDevice> device)
      : ordinal_(ordinal), device_(std::move(device)) {}
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CudaDevice& device() { return *device_; }
  bool is_lost() const { return is_lost_.load(std::memory_order_relaxed); }
  // Whether the memory of its caches may be freed.
  // @errors kIo: it failed in a copy, which may still be in flight
  Status check_released() const;

  // @errors kInvalidArgument: not memory of this GPU
  Status check_memory(const void* at, std::uint64_t bytes) const;
  // Whether a copy may be launched on this stream.
  // @errors kIo: an earlier copy failed; kInvalidArgument: the stream is being captured into a graph
  Status check(gpu::Stream stream) const;
  // Records a copy's outcome and returns it.
  Status note(Status outcome) {
    if (!outcome && outcome.error().code == Code::kIo)
      is_lost_.store(true, std::memory_order_relaxed);
    return outcome;
  }

  // @errors as the driver's
  Result<StreamMark> mark(gpu::Stream stream) const;
  // What is put on the stream from now on runs after the mark, of this GPU. @errors as the driver's
  Status follow(gpu::Stream stream, const StreamMark& mark) const;
  // A stream whose next work runs after the mark.
  Result<StreamLoan> borrow_behind(const StreamMark& mark);

 private:
  friend class StreamMark;
  friend class StreamLoan;

  const int ordinal_;
  std::unique_ptr<CudaDevice> device_;
  // Relaxed: a thread that sees it late gets the driver's error
  std::atomic<bool> is_lost_ = false;
  std::mutex mutex_;
  std::vector<gpu::Stream> idle_;
};

class Gpus {
 public:
  // Opens the GPU with this CUDA number.
  using Open = std::function<Result<std::unique_ptr<CudaDevice>>(int ordinal)>;

  // @param pool  stays mapped while this object exists
  Gpus(const memory::PoolView& pool, Open open) : pool_(pool), open_(std::move(open)) {}

  // @errors as CudaDevice::open(), register_pool() and share_pool()
  // @cost   the first time: loading the kernels, and page-locking the pool
  Result<Gpu*> find_or_open(int ordinal);
  // More memory of the pool, which lies behind what is there: GPUs that are open, and those opened later, reach it.
  // @errors as CudaDevice::register_pool() and share_pool(): no GPU reaches it then
  Status add_pool(std::byte* at, std::uint64_t bytes);
  // @errors as Gpu::check_released, of the first GPU that fails
  Status check_released();
  // Of all GPUs.
  WayBytes way_bytes();

 private:
  const memory::PoolView& pool_;
  const Open open_;
  struct Range {
    std::byte* at;
    std::uint64_t bytes;
  };
  // Page-locking a pool takes minutes: only calls that do it themselves wait for it.
  std::mutex opening_;  // taken first
  std::vector<Range> more_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Gpu>> gpus_;  // changes under both
};

// Never destroys the object.
void keep_until_exit(std::shared_ptr<void> kept);

}  // namespace cachalot::kv

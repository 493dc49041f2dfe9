// The GPUs that a client's caches are in. Each is opened once, with the first cache on it. All devices of the
// pool are registered with the first of them, and the others share that: the mappings are the session's and stay
// where they are until it ends.
//
// 1. A GPU is gone before the pool is unmapped, and after the caches that are on it.
// 2. What a copy that nobody waits for copies behind, is a place in the caller's stream, taken by the thread
//    that calls; the copy itself is on a stream of ours. So it sees what was on the caller's stream then,
//    does not lie in wait for what comes later, and is in nobody's graph.
// 3. After a copy of which nothing is known (kIo) nothing is asked of that GPU any more, and what is the
//    library's of what the copy reaches (the pool's mapping, the device, the launches' memory) stays until
//    the process ends. The tensors are the caller's to keep: check_released() says so.
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

namespace cachalot::client {

class Gpu;

// A place in a stream: all that was on it when the call was made. @threads one at a time
class StreamMark {
 public:
  StreamMark() = default;  // of no stream
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

// A stream of ours, for one call at a time. One with work that nobody has waited for is not used again: the
// next call would wait for it. @threads one at a time
class StreamLoan {
 public:
  StreamLoan() = default;  // of none
  StreamLoan(StreamLoan&& from) noexcept
      : gpu_(std::exchange(from.gpu_, nullptr)), stream_(from.stream_), is_empty_(from.is_empty_) {}
  StreamLoan& operator=(StreamLoan&&) = delete;
  ~StreamLoan();
  gpu::Stream stream() const { return stream_; }
  // All that was put on it was waited for.
  void note_empty() { is_empty_ = true; }

 private:
  friend class Gpu;
  StreamLoan(Gpu* gpu, gpu::Stream stream) : gpu_(gpu), stream_(stream) {}
  Gpu* gpu_ = nullptr;
  gpu::Stream stream_ = nullptr;
  bool is_empty_ = false;
};

// Where the copies of a call go that nobody waits for: a stream of ours behind a place in the caller's,
// borrowed by the first copy. So a call that is cancelled before it copies, or finds nothing to copy, puts
// nothing on any stream. @threads one at a time
class StreamBehind {
 public:
  StreamBehind(Gpu& gpu, StreamMark mark) : gpu_(gpu), mark_(std::move(mark)) {}
  // @errors as Gpu::borrow_behind
  Result<gpu::Stream> stream();
  // The copies so far were waited for.
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
  Gpu(int ordinal, std::unique_ptr<kv::CudaDevice> device)
      : ordinal_(ordinal), device_(std::move(device)) {}
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  kv::CudaDevice& device() { return *device_; }
  bool is_lost() const { return is_lost_.load(std::memory_order_relaxed); }
  // Whether the memory of its caches may be given away.
  // @errors kIo: it failed in a copy, which may still be under way
  Status check_released() const;

  // @errors kInvalidArgument: not memory of this GPU
  Status check_memory(const void* at, std::uint64_t bytes) const;
  // Whether a copy may be asked of it, on this stream.
  // @errors kIo: it failed in an earlier one; kInvalidArgument: the stream is being captured into a graph
  Status check(gpu::Stream stream) const;
  // What became of a copy, passed on.
  Status note(Status outcome) {
    if (!outcome && outcome.error().code == Code::kIo)
      is_lost_.store(true, std::memory_order_relaxed);
    return outcome;
  }

  // @errors as the driver's
  Result<StreamMark> mark(gpu::Stream stream) const;
  // A stream whose next work comes after the mark.
  Result<StreamLoan> borrow_behind(const StreamMark& mark);

 private:
  friend class StreamMark;
  friend class StreamLoan;

  const int ordinal_;
  std::unique_ptr<kv::CudaDevice> device_;
  std::atomic<bool> is_lost_ = false;  // relaxed: who sees it late fails by itself
  std::mutex mutex_;
  std::vector<gpu::Stream> idle_;
};

class Gpus {
 public:
  // How a GPU is opened, by CUDA's number of it.
  using Open = std::function<Result<std::unique_ptr<kv::CudaDevice>>(int ordinal)>;

  // @param pool  outlives it, mapped
  Gpus(const memory::PoolView& pool, Open open) : pool_(pool), open_(std::move(open)) {}

  // @errors as kv::CudaDevice::open(), register_pool() and share_pool()
  // @cost   the first time: loading the kernels, and page-locking the pool
  Result<Gpu*> find_or_open(int ordinal);
  // @errors as Gpu::check_released, of the first one that says so
  Status check_released();

 private:
  const memory::PoolView& pool_;
  const Open open_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Gpu>> gpus_;
};

// Whatever becomes of who had it.
void keep_until_exit(std::shared_ptr<void> kept);

}  // namespace cachalot::client

#include "device_memory/handle_pool.h"

#include <cinttypes>
#include <system_error>

namespace cachalot::device_memory {

Result<std::unique_ptr<HandlePool>> HandlePool::start(Backend& backend,
                                                      const HandlePoolOptions& options) {
  const std::uint64_t granularity = backend.granularity_bytes();
  if (options.handle_bytes == 0 || options.handle_bytes % granularity != 0) {
    return Error::make(Code::kInvalidArgument,
                       "handle pool: handles of %" PRIu64
                       " bytes; expected a multiple of the granularity of %" PRIu64,
                       options.handle_bytes, granularity);
  }
  if (options.low_handles > options.high_handles) {
    return Error::make(Code::kInvalidArgument,
                       "handle pool: low mark %" PRIu64
                       "; expected no more than the high mark, %" PRIu64,
                       options.low_handles, options.high_handles);
  }
  std::unique_ptr<HandlePool> pool(new HandlePool(backend, options));
  pool->filling_ = options.high_handles > 0;
  try {
    pool->thread_ = std::thread([raw = pool.get()] { raw->fill(); });
  } catch (const std::system_error& error) {
    return Error::make(Code::kNoSpace, "handle pool: no thread to be had: %.120s", error.what());
  }
  return pool;
}

HandlePool::~HandlePool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
  // There is no caller to report a failure to; the backend goes on counting the bytes.
  for (const Handle handle : ready_) static_cast<void>(backend_.release(handle));
}

// Creates without the lock: that is what takes time.
void HandlePool::fill() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || filling_; });
    if (stop_) return;
    lock.unlock();
    const Result<Handle> created = backend_.create(options_.handle_bytes);
    lock.lock();
    if (created) {
      put(*created);
      ++counts_.filled;
    } else {
      ++counts_.failed_fills;
    }
    filling_ = filling_ && created && ready_.size() < options_.high_handles;
    rest_.notify_all();
  }
}

void HandlePool::put(Handle handle) {
  ready_.push_back(handle);
  is_ready_.insert(handle.value);
}

void HandlePool::wake_below_low_mark() {
  if (filling_ || ready_.size() >= options_.low_handles) return;
  filling_ = true;
  work_.notify_one();
}

// With the lock held, and a handle ready.
Handle HandlePool::take_ready() {
  const Handle handle = ready_.front();
  ready_.pop_front();
  is_ready_.erase(handle.value);
  ++counts_.taken_ready;
  wake_below_low_mark();
  return handle;
}

Result<Handle> HandlePool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!ready_.empty()) return take_ready();
  }
  const Result<Handle> created = backend_.create(options_.handle_bytes);
  std::unique_lock lock(mutex_);
  if (created) {
    ++counts_.taken_created;
    wake_below_low_mark();
    return *created;
  }
  // It may be the thread that got the last memory.
  rest_.wait(lock, [&] { return !filling_ || !ready_.empty(); });
  if (!ready_.empty()) return take_ready();
  return created.error();
}

Status HandlePool::give_back(Handle handle) {
  CACHALOT_TRY_ASSIGN(const HandleInfo info, backend_.info(handle));
  if (info.bytes != options_.handle_bytes || info.mappings != 0) {
    return Error::make(Code::kInvalidArgument,
                       "handle pool: handle %" PRIu64 " of %" PRIu64 " bytes with %" PRIu64
                       " mappings given back; expected %" PRIu64 " bytes and none",
                       handle.value, info.bytes, info.mappings, options_.handle_bytes);
  }
  {
    const std::lock_guard lock(mutex_);
    if (is_ready_.contains(handle.value)) {
      return Error::make(Code::kInvalidArgument,
                         "handle pool: handle %" PRIu64 " given back twice; expected once",
                         handle.value);
    }
    if (ready_.size() < options_.high_handles) {
      put(handle);
      ++counts_.kept;
      return {};
    }
    ++counts_.released;
  }
  return backend_.release(handle);
}

void HandlePool::wait_until_filled() {
  std::unique_lock lock(mutex_);
  rest_.wait(lock, [&] { return !filling_; });
}

std::uint64_t HandlePool::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_.size();
}

HandlePoolCounts HandlePool::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace cachalot::device_memory

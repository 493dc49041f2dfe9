// A client with what it needs to run in this process, and a thread that renews it. Pool makes it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "os/file_lock.h"
#include "pool/client/client.h"
#include "rpc/waiter.h"

namespace cachalot::pool {

class Renewer;

// @threads one at a time
class PoolClient {
 public:
  // @param  lock       of the slot
  // @param  pool_name  for errors
  // @errors as Client::attach; the thread cannot be started
  static Result<PoolClient> attach(const Access& access, const ClientOptions& options,
                                   std::uint32_t slot, os::FileLock lock, const char* pool_name);
  PoolClient(PoolClient&&) noexcept;
  PoolClient& operator=(PoolClient&&) noexcept;
  ~PoolClient();

  Client& client() { return *client_; }
  const Client& client() const { return *client_; }
  Client* operator->() { return client_.get(); }

  // After each renewal the thread that renews calls this, from now on. When this returns, it does not call what it
  // called before. @threads any
  void set_idle_work(std::function<void()> work);

  // As Client::detach(); then the slot is free, even while this object lives. If copies are still in flight (kBusy), or
  // may never end (kIo), the slot stays taken until detach() is called again or this object is destroyed; if
  // copies are in flight even then, until the process ends.
  Status detach();

 private:
  explicit PoolClient(os::FileLock lock);

  os::FileLock lock_;
  std::unique_ptr<base::SteadyClock> clock_;
  std::unique_ptr<rpc::HostWaiter> waiter_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Renewer> renewer_;  // destroyed first
};

}  // namespace cachalot::pool

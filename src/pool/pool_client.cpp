#include "pool/pool_client.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

namespace cachalot::pool {

// Renews a client while its engine computes.
class Renewer {
 public:
  Renewer(Client& client, std::uint64_t interval_ns)
      : thread_([this, &client, interval_ns](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          const auto interval = std::chrono::nanoseconds(interval_ns);
          while (!wake_.wait_for(lock, stop, interval, [] { return false; })) {
            if (stop.stop_requested()) return;
            client.renew();
            const std::lock_guard working(work_mutex_);
            if (work_) work_();
          }
        }) {}

  void set_work(std::function<void()> work) {
    const std::lock_guard lock(work_mutex_);
    work_ = std::move(work);
  }

 private:
  std::mutex work_mutex_;
  std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

Result<PoolClient> PoolClient::attach(const Access& access, const ClientOptions& options,
                                      std::uint32_t slot, os::FileLock lock,
                                      const char* pool_name) {
  PoolClient attached(std::move(lock));
  attached.clock_ = std::make_unique<base::SteadyClock>();
  rpc::Doorbell own, keeper;
  if (options.use_doorbells) {
    own = rpc::Doorbell::at(access.region.at(access.layout.client_doorbell(slot)));
    keeper = rpc::Doorbell::at(access.region.at(access.layout.doorbell_page));
  }
  rpc::HostWaiter::Options waits;
  waits.peer_ran_on = [keeper](int core) { return keeper.owner_ran_on(core); };
  attached.waiter_ = std::make_unique<rpc::HostWaiter>(own, std::move(waits));
  CACHALOT_TRY_ASSIGN(attached.client_,
                      Client::attach(access, slot, options, *attached.waiter_, *attached.clock_));
  if (options.renew_interval_ns != 0) {
    try {
      attached.renewer_ = std::make_unique<Renewer>(*attached.client_, options.renew_interval_ns);
    } catch (const std::system_error& error) {
      return Error::from_errno(error.code().value(),
                               "%s: client slot %u: the thread that renews it", pool_name, slot);
    }
  }
  return attached;
}

PoolClient::PoolClient(os::FileLock lock) : lock_(std::move(lock)) {}
PoolClient::PoolClient(PoolClient&&) noexcept = default;
PoolClient& PoolClient::operator=(PoolClient&& from) noexcept {
  PoolClient taken(std::move(from));  // the previous client is detached at the end of this scope
  std::swap(lock_, taken.lock_);
  std::swap(clock_, taken.clock_);
  std::swap(waiter_, taken.waiter_);
  std::swap(client_, taken.client_);
  std::swap(renewer_, taken.renewer_);
  return *this;
}
PoolClient::~PoolClient() {
  if (client_ == nullptr) return;
  (void)detach();
  if (client_->may_still_store()) lock_.hold_until_exit();
}

void PoolClient::set_idle_work(std::function<void()> work) {
  if (renewer_ != nullptr) renewer_->set_work(std::move(work));
}

Status PoolClient::detach() {
  const Status said = client_->detach();
  if (!client_->has_left()) return said;
  // What this client wrote into the slot's lines is complete (R4), and it writes no more of them (R1). The
  // kernel orders that before whatever the next owner of the lock does.
  renewer_.reset();
  lock_.unlock();
  return said;
}

}  // namespace cachalot::pool

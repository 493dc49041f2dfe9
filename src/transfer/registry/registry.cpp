#include "transfer/registry/registry.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "transfer/registry/record_tag.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kMostRequestNs = 2'000'000'000;  // a renewal
constexpr std::uint64_t kReleaseNs = 1'000'000'000;      // in the destructor
constexpr std::uint64_t kUndoNs = 200'000'000;           // after publish() failed
constexpr std::uint64_t kRetryNs = 500'000'000;
constexpr std::uint64_t kTakenRetryNs = 100'000'000;

std::uint64_t now() {
  return base::SteadyClock::read();
}

}  // namespace

Registry::Registry(std::unique_ptr<RecordStore> store,
                   const std::optional<os::SecretKey>& cluster_key)
    : store_(std::move(store)),
      cluster_key_(cluster_key),
      pid_(getpid()),
      wake_(std::make_unique<std::condition_variable>()),
      last_(Error::make(Code::kNotFound, "registry: nothing is published")) {}

Registry::~Registry() {
  if (pid_ != getpid()) {
    // The thread and the record are the parent's. In this copy the thread waits for ever, and a condition variable's
    // destructor would wait for it.
    if (renewer_.joinable()) renewer_.detach();
    (void)wake_.release();
    (void)store_.release();
    return;
  }
  (void)withdraw(now() + kReleaseNs);
}

Status Registry::publish(const PeerRecord& record, std::uint64_t deadline_ns) {
  CACHALOT_TRY(record.check());
  const std::lock_guard calls(calls_);
  if (renewer_.joinable())
    return Error::make(Code::kInvalidArgument, "peer \"%.60s\": is published, withdraw it first",
                       record_.name.c_str());
  {
    const std::lock_guard lock(mutex_);
    record_ = record;
    if (cluster_key_) CACHALOT_TRY(add_tag(*cluster_key_, record_));
    ends_ = false;
  }
  Status taken;  // the last error that named a holder
  while (true) {
    const std::uint64_t started_ns = now();
    const Status held = store_->hold(record_, deadline_ns);
    note(held, started_ns);
    if (held) break;
    const Code code = held.error().code;
    if (code == Code::kBusy) taken = held;
    if (code != Code::kBusy || now() + kTakenRetryNs >= deadline_ns) {
      (void)store_->release(now() + kUndoNs);
      // The deadline may end a later try before it is answered.
      return code == Code::kTimeout && !taken ? taken.error() : held.error();
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kTakenRetryNs));
  }
  renewer_ = std::thread([this] { renew(); });
  return {};
}

Status Registry::withdraw(std::uint64_t deadline_ns) {
  const std::lock_guard calls(calls_);
  if (!renewer_.joinable()) return {};
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    lapses_ns_ = 0;
    last_ = Error::make(Code::kNotFound, "peer \"%.60s\": is withdrawn", record_.name.c_str());
    wake_->notify_all();
  }
  renewer_.join();
  return store_->release(deadline_ns);
}

Status Registry::published() const {
  const std::lock_guard lock(mutex_);
  if (now() < lapses_ns_) return {};
  if (!last_) return last_.error();
  return Error::make(Code::kTimeout, "peer \"%.60s\": its record lapsed", record_.name.c_str());
}

void Registry::note(const Status& held, std::uint64_t started_ns) {
  const std::uint64_t lapse_ns = store_->timing().lapse_ns;
  const std::lock_guard lock(mutex_);
  if (ends_) return;
  if (held) {
    lapses_ns_ = started_ns + std::min(lapse_ns, ~std::uint64_t{0} - started_ns);
  } else {
    if (last_)
      base::log(base::LogLevel::kWarn, "registry", "%s; trying again", held.error().message);
    // A name that is taken, or a directory that is gone: the record is not there, whatever its time was.
    if (held.error().code != Code::kTimeout && held.error().code != Code::kIo) lapses_ns_ = 0;
  }
  last_ = held ? Status() : Status(held.error());
}

void Registry::renew() {
  const std::uint64_t renew_ns = store_->timing().renew_ns;
  const std::uint64_t request_ns = std::min(renew_ns, kMostRequestNs);
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const std::uint64_t wait_ns = last_ ? renew_ns : std::min(renew_ns, kRetryNs);
    if (wake_->wait_for(lock, std::chrono::nanoseconds(wait_ns), [&] { return ends_; })) return;
    lock.unlock();
    const std::uint64_t started_ns = now();
    note(store_->hold(record_, started_ns + request_ns), started_ns);
    lock.lock();
  }
}

Result<PeerRecord> Registry::find(std::string_view name, std::uint64_t deadline_ns) const {
  CACHALOT_TRY(check_name(name));
  CACHALOT_TRY_ASSIGN(PeerRecord record, store_->find(name, deadline_ns));
  if (cluster_key_) CACHALOT_TRY(check_tag(*cluster_key_, record));
  return record;
}

Result<std::vector<PeerRecord>> Registry::list(std::string_view prefix,
                                               std::uint64_t deadline_ns) const {
  if (!prefix.empty()) CACHALOT_TRY(check_name(prefix));
  CACHALOT_TRY_ASSIGN(std::vector<PeerRecord> peers, store_->list(prefix, deadline_ns));
  if (cluster_key_) {
    std::erase_if(peers, [&](PeerRecord& peer) {
      const Status checked = check_tag(*cluster_key_, peer);
      if (!checked && untagged_line_.is_due())
        base::log(base::LogLevel::kWarn, "registry", "%s", checked.error().message);
      return !checked;
    });
  }
  std::sort(peers.begin(), peers.end(),
            [](const PeerRecord& a, const PeerRecord& b) { return a.name < b.name; });
  return peers;
}

}  // namespace cachalot::transfer

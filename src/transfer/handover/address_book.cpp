#include "transfer/handover/address_book.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kPublishNs = 15'000'000'000;
constexpr std::uint64_t kWithdrawNs = 1'000'000'000;
// A registry that hangs delays the questions behind by so much.
constexpr std::uint64_t kFindNs = 2'000'000'000;

}  // namespace

Result<std::unique_ptr<AddressBook>> AddressBook::open(std::string_view uri, const PeerRecord& own,
                                                       const std::optional<os::SecretKey>& key) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Registry> registry, open_registry(uri, key));
  CACHALOT_TRY(registry->publish(own, base::SteadyClock::read() + kPublishNs));
  std::unique_ptr<AddressBook> book(new AddressBook(std::move(registry)));
  book->thread_ = std::thread([raw = book.get()] { raw->answer(); });
  return book;
}

AddressBook::~AddressBook() {
  close();
}

void AddressBook::close() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  asked_.notify_all();
  if (thread_.joinable()) thread_.join();
  static_cast<void>(registry_->withdraw(base::SteadyClock::read() + kWithdrawNs));
}

void AddressBook::find(std::string name, std::uint64_t deadline_ns,
                       std::function<void(Result<PeerRecord>)> found) {
  {
    const std::lock_guard lock(mutex_);
    questions_.push_back({std::move(name), deadline_ns, std::move(found)});
  }
  asked_.notify_one();
}

void AddressBook::answer() {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] { return ends_ || !questions_.empty(); });
    if (ends_) return;
    const Question question = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    question.found(registry_->find(
        question.name, std::min(question.deadline_ns, base::SteadyClock::read() + kFindNs)));
    lock.lock();
  }
}

}  // namespace cachalot::transfer

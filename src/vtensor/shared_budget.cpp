#include "vtensor/shared_budget.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <utility>

#include "os/futex.h"

namespace cachalot::vtensor {
namespace {

// The numbers that others decide by guard no memory, and may be a moment old.
constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

Result<std::unique_ptr<SharedBudget>> SharedBudget::join(const SharedBudgetOptions& options) {
  for (;;) {
    CACHALOT_TRY_ASSIGN(BudgetFile file,
                        BudgetFile::open(options.path, options.chunks, options.chunk_bytes));
    std::unique_ptr<SharedBudget> budget(new SharedBudget(std::move(file)));
    CACHALOT_TRY_ASSIGN(const os::FileLock door, budget->file_.enter());
    if (!budget->file_.is_linked()) continue;  // its last user has just gone
    budget->take_back_of_the_dead();
    const Status fits = budget->file_.check_sizes(options.chunks, options.chunk_bytes);
    if (budget->is_abandoned()) {
      // All its users were killed: its sizes bind no process, and its other contents are not trusted.
      if (!fits && options.chunks != 0) {
        CACHALOT_TRY(budget->file_.remove());
        continue;
      }
      budget->wipe();
    }
    CACHALOT_TRY(fits);
    const Status taken = budget->take_slot(options);
    // It has no user, then: not this one either.
    if (!taken && budget->is_abandoned()) CACHALOT_TRY(budget->file_.remove());
    CACHALOT_TRY(taken);
    return budget;
  }
}

bool SharedBudget::is_abandoned() const {
  return std::none_of(
      std::begin(header().slots), std::end(header().slots),
      [](const BudgetSlot& slot) { return slot.used.load(std::memory_order_acquire) != 0; });
}

void SharedBudget::wipe() {
  for (std::uint64_t i = 0; i < file_.credits(); ++i) file_.owners()[i].store(0, kRelaxed);
  for (std::uint32_t slot = 0; slot < kBudgetSlots; ++slot) forget_slot(slot);
}

Status SharedBudget::take_slot(const SharedBudgetOptions& options) {
  CACHALOT_TRY(check_guarantee(options));
  for (std::uint32_t slot = 0; slot < kBudgetSlots; ++slot) {
    Result<os::FileLock> lock = file_.lock_slot(slot);
    if (!lock && lock.error().code == Code::kBusy) continue;
    if (!lock) return lock.error();
    clear_slot(slot);
    slot_ = slot;
    lock_ = std::make_unique<os::FileLock>(*std::move(lock));
    own().guarantee.store(options.guaranteed_chunks, kRelaxed);
    own().pid.store(static_cast<std::uint32_t>(getpid()), kRelaxed);
    own().used.store(
        1, std::memory_order_release);  // pairs with the loads of `used`: the rest is there
    return {};
  }
  return Error::make(Code::kBusy, "%.120s: all %u slots are taken", file_.path().c_str(),
                     kBudgetSlots);
}

Status SharedBudget::check_guarantee(const SharedBudgetOptions& options) const {
  std::uint64_t left = file_.credits();
  for (const BudgetSlot& slot : header().slots) {
    if (slot.used.load(std::memory_order_acquire) != 0)
      left -= std::min(left, slot.guarantee.load(kRelaxed));
  }
  if (options.guaranteed_chunks <= left) return {};
  return Error::make(Code::kInvalidArgument,
                     "%.120s: a guarantee of %" PRIu64 " chunks, expected at most the %" PRIu64
                     " that no set holds",
                     file_.path().c_str(), options.guaranteed_chunks, left);
}

// With the slot's lock held: no other process writes its credits.
void SharedBudget::clear_slot(std::uint32_t number) {
  const auto owner = static_cast<std::uint8_t>(number + 1);
  std::atomic<std::uint8_t>* const owners = file_.owners();
  for (std::uint64_t i = 0; i < file_.credits(); ++i) {
    // release: pairs with take_free(); what the owner did with the memory is over.
    if (owners[i].load(kRelaxed) == owner) owners[i].store(0, std::memory_order_release);
  }
  forget_slot(number);
  wake_those_who_wait();
}

// All of it but its credits.
void SharedBudget::forget_slot(std::uint32_t number) {
  BudgetSlot& slot = header().slots[number];
  for (BudgetSlot& other : header().slots) other.asked_by[number].store(0, kRelaxed);
  for (auto& asked : slot.asked_by) asked.store(0, kRelaxed);
  slot.held.store(0, kRelaxed);
  slot.wanted.store(0, kRelaxed);
  slot.guarantee.store(0, kRelaxed);
  slot.used.store(0, std::memory_order_release);
}

SharedBudget::~SharedBudget() {
  if (!lock_) return;
  const Result<os::FileLock> door = file_.enter();
  clear_slot(slot_);
  if (!door) return;
  slot_ = kBudgetSlots;
  take_back_of_the_dead();
  if (is_abandoned()) static_cast<void>(file_.remove());
}

// A slot whose lock can be had although it is used: its process has ended.
bool SharedBudget::take_back_of_the_dead() {
  const std::lock_guard lock(dead_);
  bool found = false;
  for (std::uint32_t slot = 0; slot < kBudgetSlots; ++slot) {
    if (slot == slot_ || header().slots[slot].used.load(std::memory_order_acquire) == 0) continue;
    const Result<os::FileLock> dead = file_.lock_slot(slot);
    if (!dead || header().slots[slot].used.load(std::memory_order_acquire) == 0) continue;
    clear_slot(slot);
    found = true;
  }
  return found;
}

std::uint64_t SharedBudget::count_free() const {
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < file_.credits(); ++i) {
    if (file_.owners()[i].load(kRelaxed) == 0) ++count;
  }
  return count;
}

std::uint64_t SharedBudget::held() const {
  return own().held.load(kRelaxed);
}

std::uint64_t SharedBudget::owed() const {
  const std::uint64_t guarantee = own().guarantee.load(kRelaxed), has = held();
  return guarantee > has ? guarantee - has : 0;
}

// What it may take of what is free: its guarantee, or what no other process waits for as part of its guarantee.
std::uint64_t SharedBudget::allowance() const {
  std::uint64_t held = 0, wanted = 0;
  for (std::uint32_t slot = 0; slot < kBudgetSlots; ++slot) {
    held += header().slots[slot].held.load(kRelaxed);
    if (slot != slot_) wanted += header().slots[slot].wanted.load(kRelaxed);
  }
  const std::uint64_t free = file_.credits() - std::min(file_.credits(), held);
  return std::min(free, std::max(owed(), free - std::min(free, wanted)));
}

// @return how many there were
std::uint64_t SharedBudget::take_free(std::uint64_t wanted) {
  const std::lock_guard lock(mine_mutex_);
  std::atomic<std::uint8_t>* const owners = file_.owners();
  std::uint64_t taken = 0;
  for (std::uint64_t seen = 0; seen < file_.credits() && taken < wanted; ++seen) {
    const std::uint64_t i = next_;
    next_ = i + 1 < file_.credits() ? i + 1 : 0;
    std::uint8_t nobody = 0;
    // acquire: pairs with the release of the process that returned it; the device has that memory by then.
    if (owners[i].load(kRelaxed) == 0 &&
        owners[i].compare_exchange_strong(nobody, mark(), std::memory_order_acquire, kRelaxed)) {
      mine_.push_back(i);
      ++taken;
    }
  }
  own().held.store(mine_.size(), kRelaxed);
  return taken;
}

void SharedBudget::put_back(std::uint64_t credits) {
  const std::lock_guard lock(mine_mutex_);
  const std::uint64_t count = std::min<std::uint64_t>(credits, mine_.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    file_.owners()[mine_.back()].store(0, std::memory_order_release);  // pairs with take_free()
    mine_.pop_back();
  }
  own().held.store(mine_.size(), kRelaxed);
}

std::uint64_t SharedBudget::take(std::uint64_t wanted) {
  for (;;) {
    std::uint64_t had = allowance();
    if (had >= wanted) {
      had = take_free(wanted);
      if (had == wanted) {
        if (has_asked_.load(kRelaxed)) ask(0);
        return wanted;
      }
      put_back(had);  // others were faster
      wake_those_who_wait();
    }
    if (!take_back_of_the_dead()) return had;
  }
}

void SharedBudget::give(std::uint64_t credits) {
  // In this order: an ask in between asks for too much rather than too little.
  count_as_answer(credits);
  put_back(credits);
  wake_those_who_wait();
}

void SharedBudget::count_as_answer(std::uint64_t credits) {
  for (auto& asked : own().asked_by) {
    std::uint32_t ask = asked.load(kRelaxed);
    std::uint32_t answered = 0;
    do {
      answered = static_cast<std::uint32_t>(std::min<std::uint64_t>(ask, credits));
    } while (answered != 0 && !asked.compare_exchange_weak(ask, ask - answered, kRelaxed));
    credits -= answered;
  }
}

void SharedBudget::wake_those_who_wait() {
  header().given.fetch_add(1, std::memory_order_release);  // pairs with given()
  os::futex_wake(header().given);
}

// The largest borrowers first. Asking again replaces what was asked before.
void SharedBudget::ask(std::uint64_t wanted) {
  has_asked_.store(wanted != 0, kRelaxed);
  own().wanted.store(std::min(wanted, owed()), kRelaxed);
  std::uint64_t missing = wanted - std::min(wanted, allowance());
  std::array<std::pair<std::uint64_t, std::uint32_t>, kBudgetSlots> borrowed;
  for (std::uint32_t slot = 0; slot < kBudgetSlots; ++slot) {
    const BudgetSlot& other = header().slots[slot];
    const std::uint64_t held = other.held.load(kRelaxed),
                        guarantee = other.guarantee.load(kRelaxed);
    const bool counts = slot != slot_ && other.used.load(std::memory_order_acquire) != 0;
    borrowed[slot] = {counts && held > guarantee ? held - guarantee : 0, slot};
  }
  std::sort(borrowed.rbegin(), borrowed.rend());
  for (const auto& [excess, slot] : borrowed) {
    const std::uint64_t part = std::min(missing, excess);
    missing -= part;
    BudgetSlot& other = header().slots[slot];
    const auto ask = static_cast<std::uint32_t>(part);
    if (slot == slot_ || other.asked_by[slot_].exchange(ask, kRelaxed) == ask || ask == 0) continue;
    other.asks.fetch_add(1, std::memory_order_release);  // pairs with wait_asked()
    os::futex_wake(other.asks);
  }
}

std::uint64_t SharedBudget::asked() const {
  std::uint64_t sum = 0;
  for (const auto& asked : own().asked_by) sum += asked.load(kRelaxed);
  if (sum == 0) return 0;
  const std::uint64_t guarantee = own().guarantee.load(kRelaxed), has = held();
  return has > guarantee ? std::min(sum, has - guarantee) : 0;
}

// 0 is kept for the end.
std::uint32_t SharedBudget::wait_asked(std::uint32_t seen) {
  for (;;) {
    if (stop_.load(std::memory_order_acquire)) return 0;  // pairs with stop_waiting()
    const std::uint32_t asks = own().asks.load(std::memory_order_acquire);
    if (asks != seen && asks != 0) return asks;
    os::futex_wait(own().asks, asks);
  }
}

void SharedBudget::stop_waiting() {
  stop_.store(true, std::memory_order_release);
  own().asks.fetch_add(1, std::memory_order_release);
  os::futex_wake(own().asks);
}

std::uint32_t SharedBudget::given() const {
  return header().given.load(std::memory_order_acquire);
}

bool SharedBudget::wait_given(std::uint32_t seen, std::uint64_t timeout_ns) const {
  if (given() == seen) os::futex_wait(header().given, seen, timeout_ns);
  return given() != seen;
}

}  // namespace cachalot::vtensor

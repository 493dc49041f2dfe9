#include "transfer/link/leases.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace cachalot::transfer {
namespace {

constexpr std::uint32_t kSlots = 4096;
constexpr std::uint32_t kFirstSlot = 8;  // the first line says what the file is
constexpr std::uint64_t kLeasesMagic = 0x7365736165'6c4343u;
constexpr std::uint64_t kBytes = kSlots * sizeof(std::uint64_t);
constexpr std::uint64_t kReadersAt = kBytes;  // as many words again

std::atomic<std::uint64_t>* words_of(std::byte* at) {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(at);
}
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint64_t>) == 8);

bool is_slot(LeaseId lease) {
  return lease.slot >= kFirstSlot && lease.slot < kSlots;
}

}  // namespace

Result<std::unique_ptr<Leases>> Leases::create() {
  CACHALOT_TRY_ASSIGN(os::SharedFile file,
                      os::SharedFile::create("memfd:cachalot-leases", kReadersAt + kBytes,
                                             {.mode = 0600, .huge_pages = false}));
  CACHALOT_TRY_ASSIGN(os::Mapping mapping, file.map({.huge_pages = false}));
  std::unique_ptr<Leases> leases(new Leases(std::move(file), std::move(mapping)));
  words_of(leases->mapping_.data())[0].store(kLeasesMagic, std::memory_order_release);
  for (std::uint32_t slot = kSlots; slot-- > kFirstSlot;) leases->free_.push_back(slot);
  return leases;
}

Result<LeaseId> Leases::begin() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    return Error::make(Code::kBusy,
                       "%u pushes to processes of this machine are in flight; expected fewer",
                       kSlots - kFirstSlot);
  }
  const LeaseId lease{free_.back(), ++last_term_};
  free_.pop_back();
  // Relaxed: a peer hears of the lease by a frame.
  words_of(mapping_.data())[lease.slot].store(lease.term, std::memory_order_relaxed);
  return lease;
}

void Leases::end(LeaseId lease) {
  if (lease.term == 0) return;
  words_of(mapping_.data())[lease.slot].store(0, std::memory_order_relaxed);
  // Before any store into the memory that follows; pairs with the fences in holds() and enter().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Acquire: pairs with leave(). A slice at most; the words of one process are mapped twice, so futexes do not meet.
  while (words_of(mapping_.data() + kReadersAt)[lease.slot].load(std::memory_order_acquire) != 0)
    std::this_thread::yield();
  const std::lock_guard lock(mutex_);
  free_.push_back(lease.slot);
}

Result<PeerLeases> PeerLeases::open(const std::string& path, bool is_own) {
  CACHALOT_TRY_ASSIGN(
      const os::SharedFile file,
      os::SharedFile::open(path, is_own ? os::Access::kReadWrite : os::Access::kReadOnly,
                           os::Owners::kTrusted));
  const std::uint64_t expected = is_own ? kReadersAt + kBytes : kBytes;
  if (file.bytes() < expected) {
    return Error::make(Code::kBadInput, "%s has %llu bytes; expected the %llu of a peer's leases",
                       path.c_str(), static_cast<unsigned long long>(file.bytes()),
                       static_cast<unsigned long long>(expected));
  }
  PeerLeases leases;
  CACHALOT_TRY_ASSIGN(leases.mapping_, file.map({.huge_pages = false, .read_only = !is_own}));
  leases.words_ = words_of(leases.mapping_.data());
  if (leases.words_[0].load(std::memory_order_acquire) != kLeasesMagic) {
    return Error::make(Code::kBadInput, "%s holds no leases", path.c_str());
  }
  if (is_own) leases.readers_ = words_of(leases.mapping_.data() + kReadersAt);
  return leases;
}

bool PeerLeases::enter(LeaseId lease) const {
  if (readers_ == nullptr) return true;
  if (!is_slot(lease)) return false;
  readers_[lease.slot].fetch_add(1, std::memory_order_relaxed);
  // Before the load of the word; pairs with the fence in end(): this sees the end, or end() sees the reader.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (words_[lease.slot].load(std::memory_order_relaxed) == lease.term) return true;
  leave(lease);
  return false;
}

void PeerLeases::leave(LeaseId lease) const {
  // Release: loads of the memory come before; pairs with end().
  if (readers_ != nullptr) readers_[lease.slot].fetch_sub(1, std::memory_order_release);
}

bool PeerLeases::holds(LeaseId lease) const {
  // After all loads of the memory; pairs with the fence in end().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return is_slot(lease) && words_[lease.slot].load(std::memory_order_relaxed) == lease.term;
}

}  // namespace cachalot::transfer

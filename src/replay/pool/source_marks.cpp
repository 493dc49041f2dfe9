#include "replay/pool/source_marks.h"

#include <bit>
#include <optional>
#include <span>

namespace cachalot::replay {
namespace {

using storage::Get;
using storage::ObjectKey;

constexpr std::uint64_t kSourceBit = 1;

std::uint64_t name_of(const BlockHash& hash) {
  const std::uint64_t name = hash.low & ~kSourceBit;
  return name == 0 ? 2 : name;
}

class MarkingBackend final : public storage::Backend {
 public:
  MarkingBackend(std::unique_ptr<storage::Backend> inner, SourceMarks& marks, BlockSource source)
      : inner_(std::move(inner)), marks_(marks), source_(source) {}

  const storage::BackendTraits& traits() const override { return inner_->traits(); }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override {
    return inner_->exists(keys, is_there, deadline_ns);
  }
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<storage::ObjectHead>> heads,
               std::uint64_t deadline_ns) override {
    return inner_->heads(keys, heads, deadline_ns);
  }
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override {
    return get_each(
        gets, [](Get&) {}, deadline_ns);
  }
  Status get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t deadline_ns) override {
    const auto mark = [&](Get& get) {
      marks_.set(get.key.block, source_);
      arrived(get);
    };
    return inner_->get_each(gets, mark, deadline_ns);
  }
  Status put(std::span<storage::Put> puts, std::uint64_t deadline_ns) override {
    return inner_->put(puts, deadline_ns);
  }
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override {
    return inner_->remove(keys, deadline_ns);
  }
  Status list(const Lister& each, std::uint64_t deadline_ns) override {
    return inner_->list(each, deadline_ns);
  }
  Result<storage::Space> space(std::uint64_t deadline_ns) override {
    return inner_->space(deadline_ns);
  }
  Status check() override { return inner_->check(); }
  std::shared_ptr<storage::CancelSignal> cancel_signal() const override {
    return inner_->cancel_signal();
  }

 private:
  const std::unique_ptr<storage::Backend> inner_;
  SourceMarks& marks_;
  const BlockSource source_;
};

}  // namespace

Result<SourceMarks> SourceMarks::make(std::uint64_t blocks) {
  const std::uint64_t slots = std::bit_ceil(2 * blocks + 2);
  CACHALOT_TRY_ASSIGN(os::SharedFile file,
                      os::SharedFile::create("memfd:cachalot-replay-marks",
                                             slots * sizeof(std::uint64_t), {.huge_pages = false}));
  CACHALOT_TRY_ASSIGN(os::Mapping mapping, file.map({.dont_fork = false, .huge_pages = false}));
  return SourceMarks(std::move(file), std::move(mapping), slots);
}

// New memory of a file is zero, as an atomic of 0 is.
std::atomic<std::uint64_t>& SourceMarks::slot_of(std::uint64_t name) const {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  auto* const all = reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data());
  for (std::uint64_t at = (name >> 1) & (slots_ - 1);; at = (at + 1) & (slots_ - 1)) {
    const std::uint64_t held = all[at].load(std::memory_order_acquire);
    if (held == 0 || (held & ~kSourceBit) == name) return all[at];
  }
}

void SourceMarks::set(const BlockHash& hash, BlockSource source) {
  const std::uint64_t name = name_of(hash);
  for (;;) {
    std::atomic<std::uint64_t>& slot = slot_of(name);
    std::uint64_t held = slot.load(std::memory_order_relaxed);
    if (held != 0 && (held & ~kSourceBit) != name) continue;  // another block took it meanwhile
    if (slot.compare_exchange_strong(held, name | static_cast<std::uint64_t>(source),
                                     std::memory_order_release))
      return;
  }
}

BlockSource SourceMarks::of(const BlockHash& hash) const {
  return static_cast<BlockSource>(slot_of(name_of(hash)).load(std::memory_order_acquire) &
                                  kSourceBit);
}

std::unique_ptr<storage::Backend> make_marking(std::unique_ptr<storage::Backend> inner,
                                               SourceMarks& marks, BlockSource source) {
  return std::make_unique<MarkingBackend>(std::move(inner), marks, source);
}

}  // namespace cachalot::replay

// The GPU's kernels on the CPU: the same functions (kv/fused), with host memory as theirs, one thread
// after the other. Bulk transfers happen as late as a GPU may let them, so that a stage that is used too
// early is seen in the bytes.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kv/fused/copy_bulk.h"
#include "kv/fused/copy_thread.h"

namespace cachalot::kv::emulated {

// Memory that a kernel accesses, with the host's copies in place of the GPU's instructions. Pool and engine
// are one memory. `Place` finds what lies at an address; null: an access that the kernel must not make.
template <class Place>
class CopiedMemory {
 public:
  explicit CopiedMemory(Place place = {}) : place_(place) {}

  template <class T>
  T load_pool(std::uint64_t at) {
    T value{};
    if (const std::byte* const from = place_(at, sizeof(T), sizeof(T))) {
      std::memcpy(&value, from, sizeof value);
    }
    return value;
  }
  template <class T>
  void store_pool(std::uint64_t at, T value) {
    if (std::byte* const to = place_(at, sizeof(T), sizeof(T))) {
      std::memcpy(to, &value, sizeof value);
    }
  }
  template <class T>
  T load_engine(std::uint64_t at) {
    return load_pool<T>(at);
  }
  template <class T>
  void store_engine(std::uint64_t at, T value) {
    store_pool(at, value);
  }
  // A bulk transfer's ends.
  void read(std::byte* to, std::uint64_t from, std::uint32_t bytes) {
    if (const std::byte* const found = place_(from, bytes, kUnitBytes)) {
      std::memcpy(to, found, bytes);
    }
  }
  void write(std::uint64_t to, const std::byte* from, std::uint32_t bytes) {
    if (std::byte* const found = place_(to, bytes, kUnitBytes)) std::memcpy(found, from, bytes);
  }

 private:
  Place place_;
};

// Addresses are the host's.
struct HostPlace {
  std::byte* operator()(std::uint64_t at, std::uint64_t, std::uint64_t alignment) const {
    CACHALOT_CHECK(at % alignment == 0);
    return reinterpret_cast<std::byte*>(at);
  }
};
using PlainMemory = CopiedMemory<HostPlace>;

// Shared memory and the transfers in flight of one worker, whose only thread is the leader.
template <class Memory>
class LateChannel {
 public:
  LateChannel(Memory& memory, std::uint32_t stage_bytes)
      : memory_(memory), stage_bytes_(stage_bytes) {
    for (auto& stage : stages_) stage.resize(stage_bytes);
  }

  template <class EntryOf>
  void look_up(EntryOf entry_of) {
    for (std::uint32_t i = 0; i < kItemsAtOnce; ++i) entries_[i] = entry_of(i);
  }
  const fused::ItemEntry* entries() const { return entries_; }
  bool leads() const { return true; }

  void load(std::uint32_t stage, std::uint64_t from, std::uint32_t bytes) {
    CACHALOT_CHECK(bytes != 0 && bytes % kUnitBytes == 0 && bytes <= stage_bytes_);
    CACHALOT_CHECK(loads_[stage].bytes == 0);
    std::memset(stages_[stage].data(), 0xcd, stage_bytes_);
    loads_[stage] = {from, bytes};
  }
  void wait_loaded(std::uint32_t stage, std::uint64_t use) {
    CACHALOT_CHECK(use == uses_[stage]++);
    memory_.read(stages_[stage].data(), loads_[stage].at, loads_[stage].bytes);
    loads_[stage] = {};
  }
  void store(std::uint32_t stage, std::uint64_t to, std::uint32_t bytes) {
    stores_.push_back({stage, to, bytes});
  }
  void wait_read() { finish_all_but(1); }
  void zero(std::uint64_t to, std::uint32_t bytes) {
    for (std::uint32_t i = 0; i < bytes; i += kUnitBytes) {
      memory_.template store_pool<Unit>(to + i, Unit{0, 0});
    }
  }
  void drain() { finish_all_but(0); }

 private:
  struct Transfer {
    std::uint64_t at = 0;
    std::uint32_t bytes = 0;
  };
  struct Store {
    std::uint32_t stage;
    std::uint64_t to;
    std::uint32_t bytes;
  };
  void finish_all_but(std::size_t late) {
    while (stores_.size() > late) {
      const Store& store = stores_.front();
      memory_.write(store.to, stages_[store.stage].data(), store.bytes);
      stores_.erase(stores_.begin());
    }
  }

  Memory& memory_;
  const std::uint32_t stage_bytes_;
  std::array<std::vector<std::byte>, kStages> stages_;
  std::array<Transfer, kStages> loads_;
  std::array<std::uint64_t, kStages> uses_{};
  std::vector<Store> stores_;
  fused::ItemEntry entries_[kItemsAtOnce];
};

// A launch of `blocks` thread blocks of `threads`.
template <Direction kDirection, class Memory>
void launch_threads(const CallView& call, std::uint32_t blocks, std::uint32_t threads,
                    Memory& memory) {
  const std::uint64_t all = std::uint64_t{blocks} * threads;
  for (std::uint64_t thread = 0; thread < all; ++thread) {
    fused::copy_thread<kDirection>(call, thread, all, memory);
  }
}

// A launch of `workers` thread blocks, a warp each.
template <Direction kDirection, class Memory>
void launch_bulk(const CallView& call, std::uint32_t workers, Memory& memory) {
  for (std::uint32_t worker = 0; worker < workers; ++worker) {
    LateChannel<Memory> channel(memory, call->item_bytes);
    fused::copy_bulk<kDirection>(call, worker, workers, channel);
  }
}

}  // namespace cachalot::kv::emulated

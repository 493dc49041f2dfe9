// The kernel that copies by bulk transfers (sm_90 and later: the tensor memory accelerator), for one
// worker: a warp. Where an item is costs some hundred dependent instructions to say, so its threads say it
// of the next 32 items at once, one each; then one of them, the leader, sets the transfers going and waits
// for them. Bytes go through a ring of stages in shared memory, loads ahead of stores, and the transfers of
// one batch of items are in flight while the next one is looked up. The kernel on a GPU and its emulation
// are this function; what differs is the channel:
//
//   look_up(entry)                entries()[i] = entry(i) for kItemsAtOnce of them, by whichever thread;
//                                 the leader may read them
//   leads()                       whether this thread is the leader; the rest is the leader's
//   load(stage, from, bytes)      begins; the stage is being written
//   wait_loaded(stage, use)       until the stage's use-th load (from 0) has arrived
//   store(stage, to, bytes)       begins; the stage is being read
//   wait_read()                   until at most the last store still reads its stage
//   zero(to, bytes)               16-byte stores of this thread
//   drain()                       until all stores have reached their place
//
// 1. A stage is loaded again only when the store that read it has done so: at most kStages - 2 loads
//    are ahead when one begins, so its stage's last store is not the last of all.
// 2. Everything is a multiple of 16 bytes on both sides, in address and length: the host looks before
//    it chooses this kernel.
#pragma once

#include "kv/fused/call.h"

namespace cachalot::kv {

inline constexpr std::uint32_t kStages = 8;
inline constexpr std::uint32_t kItemsAtOnce = 32;  // one a thread

namespace fused {

// A piece of an item that lies in one piece on both sides.
struct Segment {
  std::uint64_t engine, pool;
  std::uint32_t bytes, padding;  // zeros behind it
};

// An item's first segment, and what is left of the item behind it.
struct ItemEntry {
  Segment first;  // of 0 bytes: the item has none
  Item rest;
};

// Takes the first segment off an item that has bytes.
CACHALOT_HOST_DEVICE inline Segment take_segment(const CallView& call, Item& item) {
  item.piece = piece_at(item.piece, item.pool_offset);
  const std::uint64_t room = item.piece[1].offset - item.pool_offset;
  const std::uint64_t bytes = item.bytes < room ? item.bytes : room;
  const std::uint64_t padding = bytes == item.bytes ? padding_behind(call, item) : 0;
  const Segment segment{item.engine, address_in(*item.piece, item.pool_offset),
                        static_cast<std::uint32_t>(bytes), static_cast<std::uint32_t>(padding)};
  item.engine += bytes;
  item.pool_offset += bytes;
  item.bytes -= bytes;
  return segment;
}

CACHALOT_HOST_DEVICE inline ItemEntry entry_of(const CallView& call, std::uint64_t index) {
  ItemEntry entry{};
  if (index >= call->items) return entry;
  entry.rest = item_of(call, index);
  if (entry.rest.bytes != 0) entry.first = take_segment(call, entry.rest);
  return entry;
}

// The leader's: segments through the ring.
template <Direction kDirection, class Channel>
class Pump {
 public:
  CACHALOT_HOST_DEVICE explicit Pump(Channel& channel) : channel_(channel) {}

  CACHALOT_HOST_DEVICE void add(const Segment& segment) {
    if (loaded_ - stored_ == kStages - 1) store_oldest();
    if (loaded_ >= kStages) channel_.wait_read();
    const auto stage = static_cast<std::uint32_t>(loaded_ % kStages);
    ring_[stage] = segment;
    channel_.load(stage, kGathers ? segment.engine : segment.pool, segment.bytes);
    ++loaded_;
  }

  CACHALOT_HOST_DEVICE void finish() {
    while (stored_ != loaded_) store_oldest();
    channel_.drain();
  }

 private:
  static constexpr bool kGathers = kDirection == Direction::kGather;

  CACHALOT_HOST_DEVICE void store_oldest() {
    const auto stage = static_cast<std::uint32_t>(stored_ % kStages);
    const Segment& segment = ring_[stage];
    channel_.wait_loaded(stage, stored_ / kStages);
    channel_.store(stage, kGathers ? segment.pool : segment.engine, segment.bytes);
    if (kGathers && segment.padding != 0) {
      channel_.zero(segment.pool + segment.bytes, segment.padding);
    }
    ++stored_;
  }

  Channel& channel_;
  Segment ring_[kStages];
  std::uint64_t loaded_ = 0, stored_ = 0;
};

// Worker `worker` of `workers` has every workers-th item.
template <Direction kDirection, class Channel>
CACHALOT_HOST_DEVICE void copy_bulk(const CallView& call, std::uint64_t worker,
                                    std::uint64_t workers, Channel& channel) {
  Pump<kDirection, Channel> pump(channel);
  for (std::uint64_t next = worker; next < call->items; next += kItemsAtOnce * workers) {
    channel.look_up([&](std::uint32_t i) { return entry_of(call, next + i * workers); });
    if (!channel.leads()) continue;
    for (std::uint32_t i = 0; i < kItemsAtOnce; ++i) {
      ItemEntry entry = channel.entries()[i];
      if (entry.first.bytes == 0) continue;
      pump.add(entry.first);
      while (entry.rest.bytes != 0) pump.add(take_segment(call, entry.rest));
    }
  }
  if (channel.leads()) pump.finish();
}

}  // namespace fused
}  // namespace cachalot::kv

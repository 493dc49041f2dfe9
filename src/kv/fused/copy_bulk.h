// The kernel that copies by bulk transfers (sm_90 and later: the tensor memory accelerator), for one
// worker: a thread that sets transfers going and waits for them. Bytes go through a ring of stages in
// shared memory, loads ahead of stores. The kernel on a GPU and its emulation are this function; what
// differs is the channel:
//
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

inline constexpr std::uint32_t kStages = 4;

namespace fused {

// A piece of an item that lies in one piece on both sides.
struct Segment {
  std::uint64_t engine, pool;
  std::uint32_t bytes, padding;  // zeros behind it
};

// The segments of a worker's items, one after the other.
class Segments {
 public:
  CACHALOT_HOST_DEVICE Segments(const FusedCall& call, std::uint64_t worker, std::uint64_t workers)
      : call_(call), next_(worker), workers_(workers) {}

  CACHALOT_HOST_DEVICE bool next(Segment& segment) {
    while (item_.bytes == 0) {
      if (next_ >= call_.items) return false;
      item_ = item_of(call_, next_);
      next_ += workers_;
    }
    item_.piece = piece_at(item_.piece, item_.pool_offset);
    const std::uint64_t room = item_.piece[1].offset - item_.pool_offset;
    const std::uint64_t bytes = item_.bytes < room ? item_.bytes : room;
    segment.engine = item_.engine;
    segment.pool = address_in(*item_.piece, item_.pool_offset);
    segment.bytes = static_cast<std::uint32_t>(bytes);
    segment.padding =
        bytes == item_.bytes ? static_cast<std::uint32_t>(padding_behind(call_, item_)) : 0;
    item_.engine += bytes;
    item_.pool_offset += bytes;
    item_.bytes -= bytes;
    return true;
  }

 private:
  const FusedCall& call_;
  std::uint64_t next_, workers_;
  Item item_{};
};

template <Direction kDirection, class Channel>
CACHALOT_HOST_DEVICE void copy_bulk(const FusedCall& call, std::uint64_t worker,
                                    std::uint64_t workers, Channel& channel) {
  constexpr bool kGathers = kDirection == Direction::kGather;
  Segments segments(call, worker, workers);
  Segment ring[kStages];
  std::uint64_t loaded = 0, stored = 0;
  for (bool more = true;;) {
    while (more && loaded - stored < kStages - 1) {
      const auto stage = static_cast<std::uint32_t>(loaded % kStages);
      Segment& segment = ring[stage];
      more = segments.next(segment);
      if (!more) break;
      if (loaded >= kStages) channel.wait_read();
      channel.load(stage, kGathers ? segment.engine : segment.pool, segment.bytes);
      ++loaded;
    }
    if (stored == loaded) break;
    const auto stage = static_cast<std::uint32_t>(stored % kStages);
    const Segment& segment = ring[stage];
    channel.wait_loaded(stage, stored / kStages);
    channel.store(stage, kGathers ? segment.pool : segment.engine, segment.bytes);
    if (kGathers && segment.padding != 0) {
      channel.zero(segment.pool + segment.bytes, segment.padding);
    }
    ++stored;
  }
  channel.drain();
}

}  // namespace fused
}  // namespace cachalot::kv

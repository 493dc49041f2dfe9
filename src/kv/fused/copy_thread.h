// The kernel that copies with a GPU's ordinary loads and stores, for one thread. The kernel on a GPU
// and its emulations are this function; what differs is how memory is reached:
//
//   struct Memory {
//     template <class T> T load_pool(std::uint64_t at);    // and load_engine
//     template <class T> void store_pool(std::uint64_t at, T value);  // and store_engine
//   };
//
// T has 16, 8, 4, 2 or 1 bytes, and `at` is a multiple of that. Pool memory is accessed 16 bytes at a
// time wherever a whole unit is copied, for it is far away; the engine's side as wide as its alignment
// allows, which for bytes in a GPU's own memory costs little.
#pragma once

#include "kv/fused/call.h"

namespace cachalot::kv {

// 16 bytes, as one access.
struct alignas(kUnitBytes) Unit {
  std::uint64_t low, high;
};

// A thread asks for so many units before it stores the first: the pool is a microsecond away.
inline constexpr std::uint32_t kUnitsAtOnce = 4;

namespace fused {

// The pool's side or the engine's, of a memory.
template <bool kPool, class Memory>
struct SideOf {
  template <class T>
  CACHALOT_HOST_DEVICE static T load(Memory& memory, std::uint64_t at) {
    if constexpr (kPool) {
      return memory.template load_pool<T>(at);
    } else {
      return memory.template load_engine<T>(at);
    }
  }
  template <class T>
  CACHALOT_HOST_DEVICE static void store(Memory& memory, std::uint64_t at, T value) {
    if constexpr (kPool) {
      memory.template store_pool<T>(at, value);
    } else {
      memory.template store_engine<T>(at, value);
    }
  }
};

// A whole unit, in accesses of T.
template <class Side, class T, class Memory>
CACHALOT_HOST_DEVICE Unit load_by(Memory& memory, std::uint64_t at) {
  Unit unit{0, 0};
  for (std::uint32_t i = 0; i < kUnitBytes; i += sizeof(T)) {
    const std::uint64_t value = Side::template load<T>(memory, at + i);
    (i < 8 ? unit.low : unit.high) |= value << (i % 8 * 8);
  }
  return unit;
}
template <class Side, class T, class Memory>
CACHALOT_HOST_DEVICE void store_by(Memory& memory, std::uint64_t at, const Unit& unit) {
  for (std::uint32_t i = 0; i < kUnitBytes; i += sizeof(T)) {
    Side::template store<T>(memory, at + i,
                            static_cast<T>((i < 8 ? unit.low : unit.high) >> (i % 8 * 8)));
  }
}

// `bytes` of a unit, from its first on, as wide as the address allows. Little-endian, as GPUs are.
template <class Side, class Memory>
CACHALOT_HOST_DEVICE Unit load_unit(Memory& memory, std::uint64_t at, std::uint32_t bytes) {
  if (bytes == kUnitBytes) {
    if (at % 16 == 0) return Side::template load<Unit>(memory, at);
    if (at % 8 == 0) return load_by<Side, std::uint64_t>(memory, at);
    if (at % 4 == 0) return load_by<Side, std::uint32_t>(memory, at);
    if (at % 2 == 0) return load_by<Side, std::uint16_t>(memory, at);
    return load_by<Side, std::uint8_t>(memory, at);
  }
  Unit unit{0, 0};
  for (std::uint32_t i = 0; i < bytes; ++i) {
    const std::uint64_t value = Side::template load<std::uint8_t>(memory, at + i);
    (i < 8 ? unit.low : unit.high) |= value << (i % 8 * 8);
  }
  return unit;
}
template <class Side, class Memory>
CACHALOT_HOST_DEVICE void store_unit(Memory& memory, std::uint64_t at, const Unit& unit,
                                     std::uint32_t bytes) {
  if (bytes == kUnitBytes) {
    if (at % 16 == 0) return Side::template store<Unit>(memory, at, unit);
    if (at % 8 == 0) return store_by<Side, std::uint64_t>(memory, at, unit);
    if (at % 4 == 0) return store_by<Side, std::uint32_t>(memory, at, unit);
    if (at % 2 == 0) return store_by<Side, std::uint16_t>(memory, at, unit);
    return store_by<Side, std::uint8_t>(memory, at, unit);
  }
  for (std::uint32_t i = 0; i < bytes; ++i) {
    Side::template store<std::uint8_t>(
        memory, at + i, static_cast<std::uint8_t>((i < 8 ? unit.low : unit.high) >> (i % 8 * 8)));
  }
}

// Where a unit of an item is on both sides.
struct UnitPlace {
  std::uint64_t engine, pool;
  std::uint32_t bytes;  // 0: behind the item's end
};

CACHALOT_HOST_DEVICE inline UnitPlace unit_place(const Item& item, std::uint64_t unit) {
  const std::uint64_t head = item.pool_offset % kUnitBytes;
  const std::uint64_t begin = unit * kUnitBytes;
  const std::uint64_t end = begin + kUnitBytes;
  const std::uint64_t first = begin < head ? 0 : begin - head;
  const std::uint64_t last = end - head < item.bytes ? end - head : item.bytes;
  if (first >= last) return {0, 0, 0};
  const std::uint64_t offset = item.pool_offset + first;
  return {item.engine + first, address_in(*piece_at(item.piece, offset), offset),
          static_cast<std::uint32_t>(last - first)};
}

// Loads all units before it stores the first.
// @param place_of  (k) -> UnitPlace of the k-th
template <Direction kDirection, class Memory, class PlaceOf>
CACHALOT_HOST_DEVICE void copy_units(Memory& memory, PlaceOf place_of) {
  constexpr bool kGathers = kDirection == Direction::kGather;
  using From = SideOf<!kGathers, Memory>;
  using To = SideOf<kGathers, Memory>;
  UnitPlace place[kUnitsAtOnce];
  Unit unit[kUnitsAtOnce];
  CACHALOT_UNROLL
  for (std::uint32_t k = 0; k < kUnitsAtOnce; ++k) {
    place[k] = place_of(k);
    if (place[k].bytes == 0) continue;
    unit[k] = load_unit<From>(memory, kGathers ? place[k].engine : place[k].pool, place[k].bytes);
  }
  CACHALOT_UNROLL
  for (std::uint32_t k = 0; k < kUnitsAtOnce; ++k) {
    if (place[k].bytes == 0) continue;
    store_unit<To>(memory, kGathers ? place[k].pool : place[k].engine, unit[k], place[k].bytes);
  }
}

CACHALOT_HOST_DEVICE inline std::uint64_t units_of(const Item& item) {
  return (item.pool_offset % kUnitBytes + item.bytes + kUnitBytes - 1) / kUnitBytes;
}

template <Direction kDirection, class Memory>
CACHALOT_HOST_DEVICE void copy_item(const Item& item, std::uint32_t lane, std::uint32_t lanes,
                                    Memory& memory) {
  const std::uint64_t units = units_of(item);
  for (std::uint64_t first = lane; first < units; first += std::uint64_t{kUnitsAtOnce} * lanes) {
    copy_units<kDirection>(memory, [&](std::uint32_t k) {
      return unit_place(item, first + std::uint64_t{k} * lanes);
    });
  }
}

// Two short items as one, or a lane would have half as much in flight.
template <Direction kDirection, class Memory>
CACHALOT_HOST_DEVICE void copy_pair(const Item& one, const Item& other, std::uint32_t lane,
                                    std::uint32_t lanes, Memory& memory) {
  constexpr std::uint32_t kHalf = kUnitsAtOnce / 2;
  copy_units<kDirection>(memory, [&](std::uint32_t k) {
    return unit_place(k < kHalf ? one : other, lane + std::uint64_t{k % kHalf} * lanes);
  });
}

// Zeros behind a block's last byte, to the end of its line: where the last byte's piece goes on.
template <class Memory>
CACHALOT_HOST_DEVICE void pad(const CallView& call, const Item& item, std::uint32_t lane,
                              std::uint32_t lanes, Memory& memory) {
  const std::uint64_t padding = padding_behind(call, item);
  if (padding == 0) return;
  const PoolPiece& last = *piece_at(item.piece, call->block_bytes - 1);
  for (std::uint64_t i = lane; i < padding; i += lanes) {
    memory.template store_pool<std::uint8_t>(address_in(last, call->block_bytes + i), 0);
  }
}

// What thread `thread` of `threads` does. `threads` is a multiple of the call's lanes, and lanes that
// share an item are neighbours.
template <Direction kDirection, class Memory>
CACHALOT_HOST_DEVICE void copy_thread(const CallView& call, std::uint64_t thread,
                                      std::uint64_t threads, Memory& memory) {
  const std::uint64_t workers = threads / call->lanes;
  const auto lane = static_cast<std::uint32_t>(thread % call->lanes);
  for (std::uint64_t i = thread / call->lanes; i < call->items; i += 2 * workers) {
    const Item one = item_of(call, i);
    const Item other = i + workers < call->items ? item_of(call, i + workers) : Item{};
    const std::uint64_t most = std::uint64_t{kUnitsAtOnce / 2} * call->lanes;
    if (units_of(one) <= most && units_of(other) <= most) {
      copy_pair<kDirection>(one, other, lane, call->lanes, memory);
    } else {
      copy_item<kDirection>(one, lane, call->lanes, memory);
      copy_item<kDirection>(other, lane, call->lanes, memory);
    }
    if (kDirection == Direction::kGather) {
      if (one.bytes != 0) pad(call, one, lane, call->lanes, memory);
      if (other.bytes != 0) pad(call, other, lane, call->lanes, memory);
    }
  }
}

}  // namespace fused
}  // namespace cachalot::kv

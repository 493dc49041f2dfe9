#include "stitch/corners.h"

namespace cachalot::stitch {
namespace {

// One that holds `bytes`, with the least left over.
Corners find_one(const device_memory::FreePool& pool, std::uint64_t bytes) {
  const device_memory::Block* const head = pool.heads.at_least(bytes);
  const device_memory::Block* const tail = pool.tails.at_least(bytes);
  if (tail != nullptr && (head == nullptr || tail->tail.bytes <= head->head.bytes)) {
    return {.tail = tail, .tail_bytes = bytes};
  }
  if (head != nullptr) return {.head = head, .head_bytes = bytes};
  return {};
}

std::uint64_t left_over(const Corners& corners) {
  return (corners.head == nullptr ? 0 : corners.head->head.bytes) +
         (corners.tail == nullptr ? 0 : corners.tail->tail.bytes) - corners.bytes();
}

// Two that hold `bytes` together, neither alone: of the largest heads the one with the best tail.
Corners find_two(const device_memory::FreePool& pool, std::uint64_t bytes) {
  constexpr int kLooks = 8;
  Corners best;
  const device_memory::Block* head = pool.heads.below(bytes);
  for (int i = 0; i < kLooks && head != nullptr; ++i, head = pool.heads.below(head->head.bytes)) {
    // A block's own head and tail are side by side already.
    const device_memory::Block* const tail = pool.tails.at_least(bytes - head->head.bytes, head);
    if (tail == nullptr) continue;
    const Corners found{head, tail, head->head.bytes, bytes - head->head.bytes};
    if (best.head == nullptr || left_over(found) < left_over(best)) best = found;
    if (left_over(best) == 0) break;
  }
  return best;
}

}  // namespace

Corners find_corners(const device_memory::FreePool& pool, std::uint64_t chunk_bytes,
                     std::uint64_t bytes) {
  if (pool.heads.is_empty() && pool.tails.is_empty()) return {};
  const std::uint64_t rest = bytes % chunk_bytes;
  const Corners one = rest == 0 ? Corners{} : find_one(pool, rest);
  if (one.bytes() != 0 && left_over(one) == 0) return one;
  if (bytes >= chunk_bytes) {
    if (const Corners two = find_two(pool, rest + chunk_bytes); two.bytes() != 0) return two;
  }
  if (rest == 0 || one.bytes() != 0) return one;
  if (const Corners two = find_two(pool, rest); two.bytes() != 0) return two;
  // No chunk is saved, but two corners become one: more is left of the last chunk.
  const device_memory::Block* const head = pool.heads.below(rest);
  if (head == nullptr) return {};
  return {.head = head, .head_bytes = head->head.bytes};
}

}  // namespace cachalot::stitch

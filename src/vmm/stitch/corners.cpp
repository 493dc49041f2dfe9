#include "vmm/stitch/corners.h"

#include <iterator>

namespace cachalot::vmm {
namespace {

template <class Parts>
const Block* smallest_of(const Parts& parts, std::uint64_t bytes) {
  const auto found = parts.lower_bound(AtLeast{bytes});
  return found == parts.end() ? nullptr : *found;
}

// One that holds `bytes`, with the least left over.
Corners find_one(const FreePool& pool, std::uint64_t bytes) {
  const Block* const head = smallest_of(pool.heads, bytes);
  const Block* const tail = smallest_of(pool.tails, bytes);
  if (tail != nullptr && (head == nullptr || tail->tail_bytes <= head->head_bytes)) {
    return {.tail = tail, .tail_bytes = bytes};
  }
  if (head != nullptr) return {.head = head, .head_bytes = bytes};
  return {};
}

std::uint64_t left_over(const Corners& corners) {
  return (corners.head == nullptr ? 0 : corners.head->head_bytes) +
         (corners.tail == nullptr ? 0 : corners.tail->tail_bytes) - corners.bytes();
}

// Two that hold `bytes` together, neither alone: of the largest heads the one with the best tail.
Corners find_two(const FreePool& pool, std::uint64_t bytes) {
  constexpr int kLooks = 8;
  Corners best;
  auto head = pool.heads.lower_bound(AtLeast{bytes});
  for (int i = 0; i < kLooks && head != pool.heads.begin(); ++i) {
    --head;
    const std::uint64_t head_bytes = (*head)->head_bytes;
    auto tail = pool.tails.lower_bound(AtLeast{bytes - head_bytes});
    if (tail != pool.tails.end() && *tail == *head) ++tail;  // a block's own are side by side already
    if (tail == pool.tails.end()) continue;
    const Corners found{*head, *tail, head_bytes, bytes - head_bytes};
    if (best.head == nullptr || left_over(found) < left_over(best)) best = found;
    if (left_over(best) == 0) break;
  }
  return best;
}

}  // namespace

Corners find_corners(const FreePool& pool, std::uint64_t chunk_bytes, std::uint64_t bytes) {
  if (pool.heads.empty() && pool.tails.empty()) return {};
  const std::uint64_t rest = bytes % chunk_bytes;
  const Corners one = rest == 0 ? Corners{} : find_one(pool, rest);
  if (one.bytes() != 0 && left_over(one) == 0) return one;
  if (bytes >= chunk_bytes) {
    if (const Corners two = find_two(pool, rest + chunk_bytes); two.bytes() != 0) return two;
  }
  if (rest == 0 || one.bytes() != 0) return one;
  if (const Corners two = find_two(pool, rest); two.bytes() != 0) return two;
  // No chunk is saved, but two corners become one: more is left of the last chunk.
  const auto larger = pool.heads.lower_bound(AtLeast{rest});
  if (larger == pool.heads.begin()) return {};
  const Block* const head = *std::prev(larger);
  return {.head = head, .head_bytes = head->head_bytes};
}

}  // namespace cachalot::vmm

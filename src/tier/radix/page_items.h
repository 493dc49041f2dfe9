// The items of a node's pages (tokens, slots, hashes) as one array that is cut in two when its node is split.
//
// A cut copies the shorter side and leaves the longer one where it is; memory of which less than half is used
// is given back. So n items cost O(n log n) copies in all, however often they are cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"

namespace cachalot::tier {

// @threads one at a time
// @cost    24 bytes and one allocation; none when empty
template <class T>
class PageItems {
 public:
  PageItems() = default;
  explicit PageItems(std::span<const T> items)
      : items_(items.empty() ? nullptr : new T[items.size()]),
        size_(static_cast<std::uint32_t>(items.size())),
        capacity_(size_) {
    std::copy(items.begin(), items.end(), items_.get());
  }
  PageItems(PageItems&& other) noexcept { swap(other); }
  PageItems& operator=(PageItems&& other) noexcept {
    PageItems taken(std::move(other));
    swap(taken);
    return *this;
  }

  std::uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* data() const { return items_.get() + first_; }
  std::span<const T> view() const { return {data(), size_}; }
  std::size_t allocated_bytes() const { return capacity_ * sizeof(T); }

  // Keeps the items from `count` on, and returns the first `count`.
  PageItems split_front(std::uint32_t count) {
    CACHALOT_CHECK(count <= size_);
    if (count <= size_ - count) {
      PageItems front(view().first(count));
      first_ += count;
      size_ -= count;
      shrink();
      return front;
    }
    PageItems back(view().subspan(count));
    swap(back);  // `back` is the front now
    back.size_ = count;
    back.shrink();
    return back;
  }

 private:
  void swap(PageItems& other) noexcept {
    items_.swap(other.items_);
    std::swap(first_, other.first_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  void shrink() {
    if (size_ < capacity_ / 2) *this = PageItems(view());
  }

  std::unique_ptr<T[]> items_;
  std::uint32_t first_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 0;
};

}  // namespace cachalot::tier

// Which bytes of a stream are there: ranges that are merged as they meet.
#pragma once

#include <cstdint>
#include <map>

namespace cachalot::transfer {

class ByteRanges {
 public:
  void add(std::uint64_t offset, std::uint64_t bytes) {
    std::uint64_t end = offset + bytes;
    auto next = ranges_.upper_bound(offset);
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->second >= offset) {
        offset = before->first;
        end = end > before->second ? end : before->second;
        ranges_.erase(before);
      }
    }
    while (next != ranges_.end() && next->first <= end) {
      end = end > next->second ? end : next->second;
      next = ranges_.erase(next);
    }
    ranges_[offset] = end;
  }
  // Bytes from 0 on without a gap.
  std::uint64_t prefix() const {
    return ranges_.empty() || ranges_.begin()->first != 0 ? 0 : ranges_.begin()->second;
  }
  bool contains(std::uint64_t offset, std::uint64_t bytes) const {
    auto next = ranges_.upper_bound(offset);
    return next != ranges_.begin() && std::prev(next)->second >= offset + bytes;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // first byte, end
};

}  // namespace cachalot::transfer

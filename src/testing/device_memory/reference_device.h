// For tests: the rules of backend.h in the plainest form, lists that are searched from end to end. It
// says what each call must answer and what there is after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device_memory/call_counts.h"
#include "device_memory/types.h"

namespace cachalot::device_memory {

enum class Answer { kOk, kInvalid, kNoSpace };

class ReferenceDevice {
 public:
  struct Range {
    Address at;
    std::uint64_t bytes;
  };
  struct Physical {
    Handle handle;
    std::uint64_t bytes;
    bool released = false;
  };
  struct Mapping {
    Address at;
    std::uint64_t bytes;
    Handle handle;
    Access access = Access::kNone;
  };

  explicit ReferenceDevice(std::uint64_t granule) : granule_(granule) {}

  std::vector<Range> ranges;
  std::vector<Physical> handles;  // all that ever were
  std::vector<Mapping> mappings;
  std::uint64_t limit = 0;
  CallCounts counts;

  // What an answer of kOk made.
  void reserved(Address at, std::uint64_t bytes) {
    ranges.push_back({at, bytes});
    ++counts.reserve;
  }
  void created(Handle handle, std::uint64_t bytes) {
    handles.push_back({handle, bytes});
    ++counts.create;
  }

  Answer reserve(std::uint64_t bytes) const {
    return is_size(bytes) ? Answer::kOk : Answer::kInvalid;
  }

  Answer free_range(Address at) {
    const auto range = std::ranges::find(ranges, at, &Range::at);
    if (range == ranges.end()) return Answer::kInvalid;
    for (const Mapping& mapping : mappings) {
      if (meet(mapping.at, mapping.bytes, range->at, range->bytes)) return Answer::kInvalid;
    }
    ranges.erase(range);
    ++counts.free_range;
    return Answer::kOk;
  }

  Answer create(std::uint64_t bytes) const {
    if (!is_size(bytes)) return Answer::kInvalid;
    return limit != 0 && physical_bytes() + bytes > limit ? Answer::kNoSpace : Answer::kOk;
  }

  Answer release(Handle handle) {
    Physical* const physical = find(handle);
    if (physical == nullptr || physical->released) return Answer::kInvalid;
    physical->released = true;
    ++counts.release;
    return Answer::kOk;
  }

  Answer map(Address at, Handle handle) {
    const Physical* const physical = find(handle);
    if (physical == nullptr || physical->released) return Answer::kInvalid;
    if (!is_inside(at, physical->bytes)) return Answer::kInvalid;
    for (const Mapping& mapping : mappings) {
      if (meet(mapping.at, mapping.bytes, at, physical->bytes)) return Answer::kInvalid;
    }
    mappings.push_back({at, physical->bytes, handle});
    ++counts.map;
    return Answer::kOk;
  }

  Answer set_access(Address at, std::uint64_t bytes, Access access) {
    if (!is_span(at, bytes)) return Answer::kInvalid;
    for (Mapping& mapping : mappings) {
      if (meet(mapping.at, mapping.bytes, at, bytes)) mapping.access = access;
    }
    ++counts.set_access;
    return Answer::kOk;
  }

  Answer unmap(Address at, std::uint64_t bytes) {
    if (!is_span(at, bytes)) return Answer::kInvalid;
    std::erase_if(mappings, [&](const Mapping& mapping) {
      return meet(mapping.at, mapping.bytes, at, bytes);
    });
    ++counts.unmap;
    return Answer::kOk;
  }

  std::uint64_t physical_bytes() const {
    std::uint64_t sum = 0;
    for (const Physical& physical : handles) {
      const bool mapped = std::ranges::count(mappings, physical.handle, &Mapping::handle) != 0;
      if (!physical.released || mapped) sum += physical.bytes;
    }
    return sum;
  }
  std::uint64_t reserved_bytes() const { return sum_of(ranges); }
  std::uint64_t mapped_bytes() const { return sum_of(mappings); }

 private:
  template <class List>
  static std::uint64_t sum_of(const List& list) {
    std::uint64_t sum = 0;
    for (const auto& element : list) sum += element.bytes;
    return sum;
  }
  static bool meet(Address a, std::uint64_t a_bytes, Address b, std::uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
  }
  bool is_size(std::uint64_t bytes) const { return bytes != 0 && bytes % granule_ == 0; }

  bool is_inside(Address at, std::uint64_t bytes) const {
    return std::ranges::any_of(ranges, [&](const Range& range) {
      return at >= range.at && at + bytes <= range.at + range.bytes &&
             (at - range.at) % granule_ == 0;
    });
  }

  // Whole mappings that fill the bytes, in one range.
  bool is_span(Address at, std::uint64_t bytes) const {
    if (!is_size(bytes) || !is_inside(at, bytes)) return false;
    std::uint64_t filled = 0;
    for (const Mapping& mapping : mappings) {
      if (!meet(mapping.at, mapping.bytes, at, bytes)) continue;
      if (mapping.at < at || mapping.at + mapping.bytes > at + bytes) return false;
      filled += mapping.bytes;
    }
    return filled == bytes;
  }

  Physical* find(Handle handle) {
    const auto found = std::ranges::find(handles, handle, &Physical::handle);
    return found == handles.end() ? nullptr : &*found;
  }

  std::uint64_t granule_;
};

}  // namespace cachalot::device_memory

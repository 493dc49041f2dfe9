#include "device_memory/address_book.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace cachalot::device_memory {

Status AddressBook::check_size(const char* name, std::uint64_t bytes) const {
  if (bytes != 0 && bytes % granularity_bytes_ == 0) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: %" PRIu64 " bytes; expected a multiple of the granularity of %" PRIu64,
                     name, bytes, granularity_bytes_);
}

// The range that holds this address, or null.
AddressBook::Range* AddressBook::range_at(Address at) {
  if (last_range_ != nullptr && at - last_range_->at < last_range_->bytes) return last_range_;
  const auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return nullptr;
  Range& range = std::prev(next)->second;
  if (at - range.at >= range.bytes) return nullptr;
  last_range_ = &range;
  return &range;
}

// The range that holds all these bytes, if no other call is at work in it.
Result<AddressBook::Range*> AddressBook::find_idle(const char* name, Address at,
                                                   std::uint64_t bytes) {
  Range* const range = range_at(at);
  if (range == nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "%s: 0x%" PRIx64 " is in no range; expected a place in a reserved one", name,
                       at);
  }
  const std::uint64_t offset = at - range->at;
  if (offset % granularity_bytes_ != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%s: 0x%" PRIx64 " is %" PRIu64
                       " bytes into its range; expected a multiple of the granularity of %" PRIu64,
                       name, at, offset, granularity_bytes_);
  }
  if (bytes > range->bytes - offset) {
    return Error::make(Code::kInvalidArgument,
                       "%s: %" PRIu64 " bytes at 0x%" PRIx64 "; expected no more than the %" PRIu64
                       " left of the range at 0x%" PRIx64,
                       name, bytes, at, range->bytes - offset, range->at);
  }
  if (range->busy) {
    return Error::make(Code::kBusy,
                       "%s: another call is at work in the range at 0x%" PRIx64
                       "; expected calls on a range one at a time",
                       name, range->at);
  }
  return range;
}

void AddressBook::end(Range* range) {
  CACHALOT_CHECK(range->busy);
  range->busy = false;
}

Status AddressBook::check_reserve(std::uint64_t bytes) const {
  CACHALOT_TRY(check_size("reserve", bytes));
  if (bytes / granularity_bytes_ <= kMaxRangePlaces) return {};
  return Error::make(Code::kNoSpace,
                     "reserve: %" PRIu64 " bytes; expected no more than the %" PRIu64
                     " that a range may have",
                     bytes, kMaxRangePlaces * granularity_bytes_);
}

void AddressBook::add_range(Address range, std::uint64_t bytes) {
  CACHALOT_CHECK(ranges_.find(range) == ranges_.end());
  ranges_.emplace(std::piecewise_construct, std::forward_as_tuple(range),
                  std::forward_as_tuple(range, bytes, bytes / granularity_bytes_));
  reserved_bytes_ += bytes;
}

Result<std::uint64_t> AddressBook::remove_range(Address at) {
  const auto found = ranges_.find(at);
  if (found == ranges_.end()) {
    return Error::make(Code::kInvalidArgument,
                       "free_range: 0x%" PRIx64 " is no range; expected what reserve() returned",
                       at);
  }
  const std::uint64_t bytes = found->second.bytes;
  CACHALOT_TRY(find_idle("free_range", at, bytes));
  const auto& table = found->second.table;
  if (table.taken() != 0) {
    return Error::make(Code::kInvalidArgument,
                       "free_range: 0x%" PRIx64 " has %" PRIu64
                       " mapped bytes, the first at 0x%" PRIx64 "; expected none",
                       at, table.taken() * granularity_bytes_,
                       at + table.first_taken(0, table.places()) * granularity_bytes_);
  }
  if (last_range_ == &found->second) last_range_ = nullptr;
  ranges_.erase(found);
  reserved_bytes_ -= bytes;
  return bytes;
}

Status AddressBook::begin_create(std::uint64_t bytes) {
  CACHALOT_TRY(check_size("create", bytes));
  const std::uint64_t limit =
      limit_bytes_ != 0 ? limit_bytes_ : std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t left = limit - std::min(limit, physical_bytes_);
  if (bytes > left) {
    Error error = Error::make(Code::kNoSpace,
                              "create: %" PRIu64 " bytes; expected no more than the %" PRIu64
                              " left of the limit of %" PRIu64,
                              bytes, left, limit);
    error.detail = left;
    return error;
  }
  physical_bytes_ += bytes;
  return {};
}

Handle AddressBook::finish_create(Memory memory) {
  const Handle handle{++last_handle_};
  handles_.emplace(handle.value, Physical{.memory = memory, .handle = handle});
  return handle;
}

Result<AddressBook::Physical*> AddressBook::find_live(const char* name, Handle handle) {
  const auto found = handles_.find(handle.value);
  if (found != handles_.end() && !found->second.released) return &found->second;
  const bool existed = handle.value != 0 && handle.value <= last_handle_;
  return Error::make(Code::kInvalidArgument, "%s: handle %" PRIu64 " %s; expected a live one", name,
                     handle.value, existed ? "was released" : "was never created");
}

void AddressBook::free_if_unused(Physical* physical, std::vector<Memory>* freed) {
  if (!physical->released || physical->mappings != 0) return;
  freed->push_back(physical->memory);
  handles_.erase(physical->handle.value);
}

Status AddressBook::release(Handle handle, std::vector<Memory>* freed) {
  CACHALOT_TRY_ASSIGN(Physical* const physical, find_live("release", handle));
  physical->released = true;
  free_if_unused(physical, freed);
  return {};
}

Status AddressBook::check_free(const Range& range, Address at, const Physical& physical) const {
  const std::uint64_t first = (at - range.at) / granularity_bytes_;
  const std::uint64_t count = physical.memory.bytes / granularity_bytes_;
  const std::uint64_t taken = range.table.first_taken(first, count);
  if (taken == first + count) return {};
  const auto other = range.table.at(taken);
  return Error::make(Code::kInvalidArgument,
                     "map: handle %" PRIu64 ", %" PRIu64 " bytes at 0x%" PRIx64 ": handle %" PRIu64
                     " is mapped at 0x%" PRIx64 "; expected a free place",
                     physical.handle.value, physical.memory.bytes, at, other.physical->handle.value,
                     range.at + (taken - other.part) * granularity_bytes_);
}

Result<AddressBook::MapCall> AddressBook::begin_map(Address at, Handle handle) {
  CACHALOT_TRY_ASSIGN(Physical* const physical, find_live("map", handle));
  const std::uint64_t bytes = physical->memory.bytes;
  CACHALOT_TRY_ASSIGN(Range* const range, find_idle("map", at, bytes));
  CACHALOT_TRY(check_free(*range, at, *physical));
  range->table.fill((at - range->at) / granularity_bytes_, bytes / granularity_bytes_, physical);
  physical->mappings += 1;
  mapped_bytes_ += bytes;
  range->busy = true;
  return MapCall{.at = at, .memory = physical->memory, .range = range};
}

void AddressBook::cancel_map(const MapCall& call, std::vector<Memory>* freed) {
  take_out(call.range, {.at = call.at, .bytes = call.memory.bytes, .mappings = 1}, freed);
}

Result<AddressBook::SpanCall> AddressBook::begin_span(const char* name, Address at,
                                                      std::uint64_t bytes) {
  CACHALOT_TRY(check_size(name, bytes));
  CACHALOT_TRY_ASSIGN(Range* const range, find_idle(name, at, bytes));
  Span span{.at = at};
  while (span.bytes < bytes) {
    const Address expected = at + span.bytes;
    const auto place = range->table.at((expected - range->at) / granularity_bytes_);
    if (place.physical == nullptr || place.part != 0) {
      return Error::make(Code::kInvalidArgument,
                         "%s: %" PRIu64 " bytes at 0x%" PRIx64 ": no mapping begins at 0x%" PRIx64
                         "; expected whole mappings side by side",
                         name, bytes, at, expected);
    }
    span.bytes += place.physical->memory.bytes;
    span.mappings += 1;
  }
  if (span.bytes != bytes) {
    return Error::make(Code::kInvalidArgument,
                       "%s: %" PRIu64 " bytes at 0x%" PRIx64 ": the last mapping ends at 0x%" PRIx64
                       "; expected whole mappings",
                       name, bytes, at, at + span.bytes);
  }
  range->busy = true;
  return SpanCall{.span = span, .range = range};
}

void AddressBook::finish_unmap(const SpanCall& call, std::vector<Memory>* freed) {
  take_out(call.range, call.span, freed);
}

void AddressBook::take_out(Range* range, const Span& span, std::vector<Memory>* freed) {
  std::uint64_t place = (span.at - range->at) / granularity_bytes_;
  for (std::uint64_t i = 0; i < span.mappings; ++i) {
    Physical* const physical = range->table.at(place).physical;
    const std::uint64_t count = physical->memory.bytes / granularity_bytes_;
    range->table.clear(place, count);
    place += count;
    physical->mappings -= 1;
    free_if_unused(physical, freed);
  }
  mapped_bytes_ -= span.bytes;
  end(range);
}

AddressBook::Leftovers AddressBook::leftovers() const {
  Leftovers left;
  for (const auto& [at, range] : ranges_) {
    left.ranges.push_back({.at = at, .bytes = range.bytes});
    const std::uint64_t places = range.table.places();
    for (std::uint64_t place = range.table.first_taken(0, places); place < places;) {
      const std::uint64_t bytes = range.table.at(place).physical->memory.bytes;
      left.mappings.push_back(
          {.at = at + place * granularity_bytes_, .bytes = bytes, .mappings = 1});
      place += bytes / granularity_bytes_;
      place = range.table.first_taken(place, places - place);
    }
  }
  for (const auto& [value, physical] : handles_) left.memory.push_back(physical.memory);
  return left;
}

}  // namespace cachalot::device_memory

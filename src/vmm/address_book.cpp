#include "vmm/address_book.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <limits>

#include "base/check.h"

namespace cachalot::vmm {

Status AddressBook::check_size(const char* name, std::uint64_t bytes) const {
  if (bytes != 0 && bytes % granularity_bytes_ == 0) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: %" PRIu64 " bytes; expected a multiple of the granularity of %" PRIu64,
                     name, bytes, granularity_bytes_);
}

// The range that holds this address, or end().
AddressBook::Ranges::iterator AddressBook::range_at(Address at) {
  auto found = ranges_.upper_bound(at);
  if (found == ranges_.begin()) return ranges_.end();
  --found;
  return at - found->first < found->second.bytes ? found : ranges_.end();
}

// The range that holds all these bytes, if no other call is at work in it.
Result<AddressBook::Range*> AddressBook::find_idle(const char* name, Address at,
                                                   std::uint64_t bytes) {
  const auto found = range_at(at);
  if (found == ranges_.end()) {
    return Error::make(Code::kInvalidArgument,
                       "%s: 0x%" PRIx64 " is in no range; expected a place in a reserved one", name,
                       at);
  }
  const std::uint64_t offset = at - found->first;
  if (offset % granularity_bytes_ != 0) {
    return Error::make(Code::kInvalidArgument,
                       "%s: 0x%" PRIx64 " is %" PRIu64
                       " bytes into its range; expected a multiple "
                       "of the granularity of %" PRIu64,
                       name, at, offset, granularity_bytes_);
  }
  if (bytes > found->second.bytes - offset) {
    return Error::make(Code::kInvalidArgument,
                       "%s: %" PRIu64 " bytes at 0x%" PRIx64 "; expected no more than the %" PRIu64
                       " left of the range at 0x%" PRIx64,
                       name, bytes, at, found->second.bytes - offset, found->first);
  }
  if (found->second.busy) {
    return Error::make(Code::kBusy,
                       "%s: another call is at work in the range at 0x%" PRIx64
                       "; expected calls on a range one at a time",
                       name, found->first);
  }
  return &found->second;
}

void AddressBook::end(Range* range) {
  CACHALOT_CHECK(range->busy);
  range->busy = false;
}

Status AddressBook::check_reserve(std::uint64_t bytes) const {
  return check_size("reserve", bytes);
}

void AddressBook::add_range(Address range, std::uint64_t bytes) {
  const bool added = ranges_.try_emplace(range, Range{.bytes = bytes}).second;
  CACHALOT_CHECK(added);
  reserved_bytes_ += bytes;
}

Result<std::uint64_t> AddressBook::remove_range(Address range) {
  const auto found = ranges_.find(range);
  if (found == ranges_.end()) {
    return Error::make(Code::kInvalidArgument,
                       "free_range: 0x%" PRIx64 " is no range; expected what reserve() returned",
                       range);
  }
  const std::uint64_t bytes = found->second.bytes;
  CACHALOT_TRY(find_idle("free_range", range, bytes));
  const auto& mappings = found->second.mappings;
  if (!mappings.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "free_range: 0x%" PRIx64 " has %zu mappings, the first at 0x%" PRIx64
                       "; expected none",
                       range, mappings.size(), mappings.begin()->first);
  }
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

Result<AddressBook::MapCall> AddressBook::begin_map(Address at, Handle handle) {
  CACHALOT_TRY_ASSIGN(Physical* const physical, find_live("map", handle));
  const std::uint64_t bytes = physical->memory.bytes;
  CACHALOT_TRY_ASSIGN(Range* const range, find_idle("map", at, bytes));
  // Mappings do not overlap each other, so only the two neighbours can be in the way.
  auto& mappings = range->mappings;
  const auto next = mappings.lower_bound(at);
  auto other = mappings.end();
  if (next != mappings.end() && next->first - at < bytes) other = next;
  if (next != mappings.begin()) {
    const auto before = std::prev(next);
    if (at - before->first < before->second->memory.bytes) other = before;
  }
  if (other != mappings.end()) {
    return Error::make(Code::kInvalidArgument,
                       "map: handle %" PRIu64 ", %" PRIu64 " bytes at 0x%" PRIx64
                       ": handle %" PRIu64 " is mapped at 0x%" PRIx64 "; expected a free place",
                       handle.value, bytes, at, other->second->handle.value, other->first);
  }
  mappings.emplace_hint(next, at, physical);
  physical->mappings += 1;
  mapped_bytes_ += bytes;
  range->busy = true;
  return MapCall{.at = at, .memory = physical->memory, .range = range};
}

void AddressBook::cancel_map(const MapCall& call, std::vector<Memory>* freed) {
  const auto mapping = call.range->mappings.find(call.at);
  take_out(call.range, mapping, std::next(mapping), freed);
}

Result<AddressBook::SpanCall> AddressBook::begin_span(const char* name, Address at,
                                                      std::uint64_t bytes) {
  CACHALOT_TRY(check_size(name, bytes));
  CACHALOT_TRY_ASSIGN(Range* const range, find_idle(name, at, bytes));
  Span span{.at = at};
  for (auto mapping = range->mappings.find(at); span.bytes < bytes; ++mapping) {
    const Address expected = at + span.bytes;
    if (mapping == range->mappings.end() || mapping->first != expected) {
      return Error::make(Code::kInvalidArgument,
                         "%s: %" PRIu64 " bytes at 0x%" PRIx64 ": no mapping begins at 0x%" PRIx64
                         "; expected whole mappings side by side",
                         name, bytes, at, expected);
    }
    span.bytes += mapping->second->memory.bytes;
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
  const auto first = call.range->mappings.find(call.span.at);
  const auto last = std::next(first, static_cast<std::ptrdiff_t>(call.span.mappings));
  take_out(call.range, first, last, freed);
}

void AddressBook::take_out(Range* range, Mapping first, Mapping last, std::vector<Memory>* freed) {
  for (auto mapping = first; mapping != last; ++mapping) {
    mapped_bytes_ -= mapping->second->memory.bytes;
    mapping->second->mappings -= 1;
    free_if_unused(mapping->second, freed);
  }
  range->mappings.erase(first, last);
  end(range);
}

}  // namespace cachalot::vmm

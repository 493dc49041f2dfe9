// The fields of a memory snapshot's dicts, each checked for its kind and range when it is read.
//
// Errors begin with the name of the field; the caller that knows the dict's place prefixes it.
#pragma once

#include <cachalot/result.h>

#include <cinttypes>
#include <cstdint>
#include <span>
#include <string>

#include "trace/allocation/alloc_event.h"
#include "trace/allocation/pickle_value.h"

namespace cachalot::trace {

class SnapshotFields {
 public:
  SnapshotFields(const PickleDocument& snapshot, const PickleValue& dict)
      : snapshot_(snapshot), dict_(dict) {}

  // nullptr: there is none.
  const PickleValue* find(const char* name) const { return snapshot_.find(dict_, name); }

  // @errors kBadInput, here and below
  Result<PickleValue> get(const char* name, PickleKind kind) const {
    CACHALOT_TRY_ASSIGN(const PickleValue value, any(name, kind));
    if (value.kind == kind) return value;
    return Error::make(Code::kBadInput, "%s: %s, expected %s", name, pickle_kind_name(value.kind),
                       pickle_kind_name(kind));
  }

  Result<std::span<const PickleValue>> list(const char* name) const {
    CACHALOT_TRY_ASSIGN(const PickleValue value, get(name, PickleKind::kList));
    return snapshot_.items(value);
  }

  Result<std::uint64_t> number(const char* name, std::uint64_t low = 0) const {
    CACHALOT_TRY_ASSIGN(const PickleValue value, any(name, PickleKind::kInteger));
    if (value.kind == PickleKind::kLargeInteger) return value.large;
    if (value.kind != PickleKind::kInteger) {
      return Error::make(Code::kBadInput, "%s: %s, expected an int below 2^64", name,
                         pickle_kind_name(value.kind));
    }
    if (value.integer >= static_cast<std::int64_t>(low)) {
      return static_cast<std::uint64_t>(value.integer);
    }
    return Error::make(Code::kBadInput, "%s: %" PRId64 ", expected at least %" PRIu64, name,
                       value.integer, low);
  }

 private:
  static constexpr std::size_t kMaxFields = 256;

  // Whatever its kind; `kind` is what messages expect.
  Result<PickleValue> any(const char* name, PickleKind kind) const {
    if (dict_.kind != PickleKind::kDict) {
      return Error::make(Code::kBadInput, "%s, expected a dict", pickle_kind_name(dict_.kind));
    }
    // No dict of a snapshot has so many; looking up fields takes time by their number.
    if (snapshot_.items(dict_).size() > 2 * kMaxFields) {
      return Error::make(Code::kBadInput, "a dict of over %zu fields, expected fewer", kMaxFields);
    }
    const PickleValue* const value = find(name);
    if (value != nullptr) return *value;
    return Error::make(Code::kBadInput, "%s: missing, expected %s", name, pickle_kind_name(kind));
  }

  const PickleDocument& snapshot_;
  const PickleValue& dict_;
};

}  // namespace cachalot::trace

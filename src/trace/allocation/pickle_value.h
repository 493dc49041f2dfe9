// What is in a pickle, Python's format for data: numbers, text, and lists, tuples, sets and dicts of them.
//
// 1. A value is 16 bytes and owns nothing: its text lies in the file's bytes, its items in the document.
// 2. Items may be shared, or contain themselves: a walk over values bounds its depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot::trace {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInteger,
  kLargeInteger,  // of 2^63 to 2^64 - 1: an address, for one
  kLongInteger,   // beyond 64 bits: that it is one is all that is known
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kSet,
  kDict,
};

// "None", "bool", "int", … as Python says; "int beyond 64 bits".
const char* pickle_kind_name(PickleKind kind);

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::uint32_t text_bytes = 0;
  union {
    std::int64_t integer = 0;  // of kBool, too
    std::uint64_t large;
    double real;
    const char* text;
    std::uint64_t container;
  };

  bool is_text(std::string_view expected) const {
    return kind == PickleKind::kText && std::string_view(text, text_bytes) == expected;
  }
};

class PickleDocument {
 public:
  using Containers = std::vector<std::vector<PickleValue>>;

  // What root and containers say of text lies in `bytes`; what they say of containers, in `containers`.
  PickleDocument(std::vector<char> bytes, Containers containers, PickleValue root)
      : bytes_(std::move(bytes)), containers_(std::move(containers)), root_(root) {}

  PickleValue root() const { return root_; }

  // Of a list, tuple or set; of a dict keys and values in turn; of all else nothing.
  std::span<const PickleValue> items(const PickleValue& value) const {
    if (value.kind < PickleKind::kList) return {};
    return containers_[value.container];
  }
  // The value at a dict's key; nullptr: not there, or no dict. @cost linear
  const PickleValue* find(const PickleValue& dict, std::string_view key) const {
    const PickleValue* found = nullptr;
    if (dict.kind != PickleKind::kDict) return found;
    const std::span<const PickleValue> pairs = items(dict);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (pairs[i].is_text(key)) found = &pairs[i + 1];  // the last one counts
    }
    return found;
  }

 private:
  std::vector<char> bytes_;  // a vector, for its bytes stay where they are when the document moves
  Containers containers_;
  PickleValue root_;
};

}  // namespace cachalot::trace

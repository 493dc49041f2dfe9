// An object as one string of bytes, for backends that keep values: the head, then the body (object.h).
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "storage/backend.h"

namespace cachalot::storage {

inline constexpr std::uint64_t kHeadBytes = sizeof(ObjectHead);

inline std::uint64_t value_bytes(const ObjectHead& head) {
  return kHeadBytes + head.body_bytes();
}

// The head's bytes, for a value or a list. @errors kCorrupt: too short, or no magic
Result<ObjectHead> head_of_value(Bytes value);

// Takes a value that comes in pieces of any size, and spreads it over a Get.
class ValueSink {
 public:
  explicit ValueSink(Get& get) : get_(get) {}

  // The next bytes. False: the rest is of no use, because the get has failed.
  bool feed(Bytes bytes);
  // After the last byte: sets the status of the get.
  void finish();
  // Forgets all bytes: the value comes again from its first one.
  void restart();

 private:
  void begin_body();
  void feed_body(Bytes bytes);

  Get& get_;
  bool has_failed_ = false;
  std::uint64_t fed_bytes_ = 0;  // of the value
  std::size_t piece_ = 0;        // of the room; after the last one come the tokens
  std::uint64_t piece_bytes_ = 0;
};

// A whole value that lies in memory.
void take_value(Bytes value, Get& get);

}  // namespace cachalot::storage

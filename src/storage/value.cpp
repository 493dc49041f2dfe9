#include "storage/value.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "block_hash/block_hash.h"

namespace cachalot::storage {

Result<ObjectHead> head_of_value(Bytes value) {
  ObjectHead head;
  if (value.size() < kHeadBytes) {
    return Error::make(Code::kCorrupt, "storage: a value of %zu bytes is too short for an object",
                       value.size());
  }
  std::memcpy(&head, value.data(), kHeadBytes);
  if (head.magic == kObjectMagic) return head;
  return Error::make(Code::kCorrupt, "storage: a value that is no object");
}

void ValueSink::begin_body() {
  get_.status = check_head(get_.head, get_.key);
  if (get_.status && get_.head.payload_bytes != bytes_of(get_.room)) {
    get_.status = Error::make(Code::kInvalidArgument,
                              "storage: an object has %" PRIu64 " bytes, expected %" PRIu64,
                              get_.head.payload_bytes, bytes_of(get_.room));
  }
  has_failed_ = !get_.status;
  if (!has_failed_) get_.tokens.resize(get_.head.tokens);
}

void ValueSink::feed_body(Bytes bytes) {
  while (!bytes.empty() && piece_ <= get_.room.size()) {
    const Room piece = piece_ < get_.room.size() ? get_.room[piece_]
                                                 : std::as_writable_bytes(std::span(get_.tokens));
    const std::uint64_t some = std::min<std::uint64_t>(bytes.size(), piece.size() - piece_bytes_);
    if (some != 0) std::memcpy(piece.data() + piece_bytes_, bytes.data(), some);
    bytes = bytes.subspan(some);
    piece_bytes_ += some;
    if (piece_bytes_ != piece.size()) continue;
    ++piece_;
    piece_bytes_ = 0;
  }
}

void ValueSink::restart() {
  get_.status = {};
  has_failed_ = false;
  fed_bytes_ = piece_ = piece_bytes_ = 0;
}

bool ValueSink::feed(Bytes bytes) {
  if (fed_bytes_ < kHeadBytes) {
    const std::uint64_t some = std::min<std::uint64_t>(bytes.size(), kHeadBytes - fed_bytes_);
    std::memcpy(reinterpret_cast<std::byte*>(&get_.head) + fed_bytes_, bytes.data(), some);
    fed_bytes_ += some;
    bytes = bytes.subspan(some);
    if (fed_bytes_ < kHeadBytes) return true;
    begin_body();
  }
  fed_bytes_ += bytes.size();
  if (!has_failed_) feed_body(bytes);
  return !has_failed_ && fed_bytes_ <= value_bytes(get_.head);
}

void ValueSink::finish() {
  if (has_failed_) return;
  if (fed_bytes_ >= kHeadBytes && fed_bytes_ == value_bytes(get_.head)) return;
  get_.status = Error::make(Code::kCorrupt, "object %.32s…: is stored with %" PRIu64 " bytes%s",
                            block_hash::to_hex(get_.key.block).c_str(), fed_bytes_,
                            fed_bytes_ < kHeadBytes ? ", less than its head" : ", not its size");
}

void take_value(Bytes value, Get& get) {
  get.status = {};
  ValueSink sink(get);
  sink.feed(value);
  sink.finish();
}

}  // namespace cachalot::storage

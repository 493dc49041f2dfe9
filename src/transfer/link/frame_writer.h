// Makes the byte stream that FrameReader takes apart, piece by piece, in buffers that the transport provides.
//
// 1. Frames and payloads come in the order of add().
// 2. A payload's bytes are copied within fill(), between enter() and leave(); no pointer to them is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transfer/link/link.h"
#include "transfer/link/payload_hash.h"

namespace cachalot::transfer {

class FrameWriter {
 public:
  FrameWriter(Link& link, LinkEvents& events) : link_(link), events_(events) {}

  void add(const Frame& frame);
  void add(OutgoingPayload payload);
  // What fill() has still to write.
  std::uint64_t bytes() const { return bytes_; }

  // Writes the next bytes of the stream. Calls on_payload_sent() of those that it ends.
  // @return their number; 0: there are none
  // @cost   one copy of the payload's bytes
  std::size_t fill(std::span<std::byte> to);
  // Drops payloads, and calls on_payload_sent() of each. Frames in front of the first one are kept.
  void end();

 private:
  struct Item {
    std::vector<std::byte> head;  // an encoded frame
    std::optional<OutgoingPayload> payload = {};
    bool is_void = false;
    std::unique_ptr<PayloadHash> hash = {};
    FrameTrailer trailer = {};
  };

  void write(std::span<std::byte>& to, std::span<const std::byte> from,
             std::uint64_t from_position);
  void copy_payload(Item& item, std::span<std::byte> to, std::uint64_t offset);
  std::uint64_t bytes_of(const Item& item) const;

  Link& link_;
  LinkEvents& events_;
  std::deque<Item> items_;
  std::uint64_t position_ = 0;  // in the first one
  std::uint64_t bytes_ = 0;
};

}  // namespace cachalot::transfer

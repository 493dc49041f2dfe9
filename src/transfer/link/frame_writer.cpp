#include "transfer/link/frame_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/link/payload_copy.h"

namespace cachalot::transfer {

std::uint64_t FrameWriter::bytes_of(const Item& item) const {
  return item.head.size() + (item.payload ? item.payload->bytes + sizeof item.trailer : 0);
}

void FrameWriter::add(const Frame& frame) {
  items_.push_back({encode(frame, 0)});
  bytes_ += bytes_of(items_.back());
}

void FrameWriter::add(OutgoingPayload payload) {
  Item item{encode(payload.frame, payload.bytes)};
  if (payload.has_checksum) item.hash = std::make_unique<PayloadHash>();
  item.payload = std::move(payload);
  items_.push_back(std::move(item));
  bytes_ += bytes_of(items_.back());
}

void FrameWriter::end() {
  std::deque<Item> kept, dropped;
  for (Item& item : items_) {
    const bool is_kept = dropped.empty() && !item.payload;
    (is_kept ? kept : dropped).push_back(std::move(item));
  }
  items_ = std::move(kept);
  if (items_.empty()) position_ = 0;
  bytes_ = 0;
  for (const Item& item : items_) bytes_ += bytes_of(item);
  bytes_ -= position_;
  for (const Item& item : dropped) {
    if (item.payload) events_.on_payload_sent(link_, *item.payload);
  }
}

std::size_t FrameWriter::fill(std::span<std::byte> to) {
  const std::size_t room = to.size();
  while (!to.empty() && !items_.empty()) {
    Item& item = items_.front();
    const std::uint64_t head = item.head.size();
    const std::uint64_t bytes = item.payload ? item.payload->bytes : 0;
    if (position_ < head) {
      write(to, item.head, position_);
    } else if (position_ < head + bytes) {
      const std::uint64_t step = std::min<std::uint64_t>(to.size(), head + bytes - position_);
      copy_payload(item, to.first(step), position_ - head);
      to = to.subspan(step);
      position_ += step;
    } else if (item.payload) {
      if (position_ == head + bytes) {
        const bool has_hash = item.payload->has_checksum && !item.is_void;
        item.trailer = make_trailer(item.is_void ? PayloadState::kVoid : PayloadState::kValid,
                                    has_hash ? item.hash->digest() : 0);
      }
      write(to, std::as_bytes(std::span(&item.trailer, 1)), position_ - head - bytes);
    }
    if (position_ < bytes_of(item)) continue;
    const Item done = std::move(item);
    items_.pop_front();
    position_ = 0;
    if (done.payload) events_.on_payload_sent(link_, *done.payload);
  }
  bytes_ -= room - to.size();
  return room - to.size();
}

void FrameWriter::write(std::span<std::byte>& to, std::span<const std::byte> from,
                        std::uint64_t from_position) {
  const std::uint64_t step = std::min<std::uint64_t>(to.size(), from.size() - from_position);
  std::memcpy(to.data(), from.data() + from_position, step);
  to = to.subspan(step);
  position_ += step;
}

void FrameWriter::copy_payload(Item& item, std::span<std::byte> to, std::uint64_t offset) {
  const OutgoingPayload& payload = *item.payload;
  if (item.is_void || !payload.memory->enter()) {
    // The owner took its memory back in mid-payload: the promised bytes are zeros, and the trailer says so.
    item.is_void = true;
    std::memset(to.data(), 0, to.size());
    return;
  }
  gather(payload.memory->stream(), payload.offset + offset, to);
  payload.memory->leave();
  if (payload.has_checksum) item.hash->add(to.data(), to.size());
}

}  // namespace cachalot::transfer

// Chains of blocks with payloads that follow from their names, for tests of storage.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "storage/backend.h"
#include "storage/store.h"

namespace cachalot::storage {

inline constexpr BlockHash kSpace{11, 12}, kOtherSpace{21, 22};

// Payloads of equal size. Aligned as blocks of a pool are, or shifted by `shift` bytes.
class Chain {
 public:
  Chain(std::uint64_t name, std::size_t blocks, std::uint64_t bytes, std::size_t tokens = 0,
        std::size_t shift = 0)
      : bytes_(bytes), shift_(shift) {
    for (std::size_t i = 0; i < blocks; ++i) {
      hashes_.push_back({base::mix64(name * 1000 + i + 1), name});
      room_.emplace_back(new_room(), &std::free);
      fill(data(i), bytes, hashes_[i]);
      tokens_.emplace_back();
      for (std::size_t t = 0; t < tokens; ++t)
        tokens_.back().push_back(static_cast<std::uint32_t>(name * 100 + i * 10 + t));
    }
  }

  std::size_t size() const { return hashes_.size(); }
  const std::vector<BlockHash>& hashes() const { return hashes_; }
  ObjectKey key(std::size_t i, const BlockHash& space = kSpace) const {
    return {space, hashes_[i]};
  }
  const std::vector<std::uint32_t>& tokens(std::size_t i) const { return tokens_[i]; }
  std::byte* data(std::size_t i) const { return room_[i].get() + shift_; }
  std::uint64_t bytes() const { return bytes_; }

  // Two pieces each, as a block on two devices.
  std::vector<Bytes> payload(std::size_t i) const {
    const std::uint64_t half = bytes_ / 2 / 4096 * 4096;
    if (half == 0) return {{data(i), bytes_}};
    return {{data(i), half}, {data(i) + half, bytes_ - half}};
  }
  std::vector<Room> room(std::size_t i) {
    const std::uint64_t half = bytes_ / 2 / 4096 * 4096;
    if (half == 0) return {{data(i), bytes_}};
    return {{data(i), half}, {data(i) + half, bytes_ - half}};
  }
  void clear(std::size_t i) { std::memset(data(i), 0xee, bytes_); }
  bool is_right(std::size_t i) const {
    std::vector<std::byte> expected(bytes_);
    fill(expected.data(), bytes_, hashes_[i]);
    return std::memcmp(expected.data(), data(i), bytes_) == 0;
  }
  // Sealed heads of a chain from its root.
  ObjectHead head(std::size_t i, const BlockHash& space = kSpace) const {
    ObjectHead head;
    head.key = key(i, space);
    if (i != 0) head.parent = hashes_[i - 1];
    head.payload_bytes = bytes_;
    head.tokens = static_cast<std::uint32_t>(tokens_[i].size());
    head.seal = seal_of(head, body(i));
    return head;
  }
  std::vector<Bytes> body(std::size_t i) const {
    std::vector<Bytes> pieces = payload(i);
    if (!tokens_[i].empty()) pieces.push_back(std::as_bytes(std::span(tokens_[i])));
    return pieces;
  }

 private:
  std::byte* new_room() const {
    const std::uint64_t whole = (bytes_ + shift_ + 4095) / 4096 * 4096;
    return static_cast<std::byte*>(std::aligned_alloc(4096, whole));
  }
  static void fill(std::byte* to, std::uint64_t bytes, const BlockHash& name) {
    for (std::uint64_t i = 0; i < bytes; i += 8) {
      const std::uint64_t word = base::mix64(name.low ^ i);
      std::memcpy(to + i, &word, std::min<std::uint64_t>(8, bytes - i));
    }
  }

  std::uint64_t bytes_;
  std::size_t shift_;
  std::vector<BlockHash> hashes_;
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> room_;
  std::vector<std::vector<std::uint32_t>> tokens_;
};

inline std::uint64_t soon() {
  return base::SteadyClock::read() + 20'000'000'000;
}

// Puts a whole chain into a backend. @return objects that were stored
inline std::size_t put_all(Backend& backend, const Chain& chain, const BlockHash& space = kSpace) {
  std::vector<Put> puts;
  std::vector<std::vector<Bytes>> bodies;
  for (std::size_t i = 0; i < chain.size(); ++i) bodies.push_back(chain.body(i));
  for (std::size_t i = 0; i < chain.size(); ++i) puts.push_back({chain.head(i, space), bodies[i]});
  if (!backend.put(puts, soon())) return 0;
  std::size_t stored = 0;
  for (const Put& put : puts) stored += put.status.ok();
  return stored;
}

// Gets a whole chain into its own room, which it clears first. @return per object: OK and the right bytes
inline std::vector<bool> get_all(Backend& backend, Chain& chain, const BlockHash& space = kSpace) {
  std::vector<std::vector<Room>> rooms;
  std::vector<Get> gets;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain.clear(i);
    rooms.push_back(chain.room(i));
  }
  for (std::size_t i = 0; i < chain.size(); ++i) gets.push_back({chain.key(i, space), rooms[i]});
  const Status whole = backend.get(gets, soon());
  std::vector<bool> is_right(chain.size());
  for (std::size_t i = 0; i < chain.size(); ++i) {
    is_right[i] = whole.ok() && gets[i].status.ok() && chain.is_right(i) &&
                  gets[i].tokens == chain.tokens(i) &&
                  gets[i].head.seal == chain.head(i, space).seal;
  }
  return is_right;
}

}  // namespace cachalot::storage

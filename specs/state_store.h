// All states seen, each once, numbered as they came. A state is mostly zero, so it is kept as a bit
// for each of its words and the words that are not zero: some 80 bytes instead of 220.
#pragma once

#include <cstring>
#include <memory>
#include <utility>

#include "model.h"

namespace cachalot::specs {

class StateStore {
 public:
  StateStore() : table_(std::size_t{1} << 16) {}

  std::size_t size() const { return places_.size(); }

  // @return the state's number, and whether it is new
  std::pair<std::uint32_t, bool> insert(const State& state) {
    if (places_.size() * 2 >= table_.size()) grow();
    Packed packed;
    const std::size_t length = pack(state, packed);
    const std::uint64_t hash = hash_of(packed, length);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    std::size_t at = hash & (table_.size() - 1);
    for (; table_[at].number != 0; at = (at + 1) & (table_.size() - 1)) {
      if (table_[at].tag != tag) continue;
      const unsigned char* known = place(table_[at].number - 1);
      if (known[0] == length && std::memcmp(known + 1, packed.bytes, length) == 0) {
        return {table_[at].number - 1, false};
      }
    }
    const auto number = static_cast<std::uint32_t>(places_.size());
    append(packed, length);
    table_[at] = {tag, number + 1};
    return {number, true};
  }

  State get(std::uint32_t number) const {
    const unsigned char* packed = place(number) + 1;
    const unsigned char* words = packed + kMaskBytes;
    std::uint16_t wide[kWords] = {};
    for (std::size_t i = 0; i < kWords; ++i) {
      if ((packed[i / 8] >> i % 8 & 1) == 0) continue;
      std::memcpy(&wide[i], words, 2);
      words += 2;
    }
    State state;
    std::memcpy(&state, wide, sizeof state);
    return state;
  }

 private:
  static constexpr std::size_t kWords = sizeof(State) / 2;
  static constexpr std::size_t kMaskBytes = (kWords + 7) / 8;
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 24;
  static_assert(sizeof(State) % 2 == 0 && kMaskBytes + sizeof(State) < 256);

  struct Packed {
    unsigned char bytes[kMaskBytes + sizeof(State) + 8];
  };
  struct Slot {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;  // + 1; 0: empty
  };

  static std::size_t pack(const State& state, Packed& packed) {
    std::uint16_t wide[kWords];
    std::memcpy(wide, &state, sizeof state);
    std::memset(packed.bytes, 0, kMaskBytes);
    std::size_t length = kMaskBytes;
    for (std::size_t i = 0; i < kWords; ++i) {
      if (wide[i] == 0) continue;
      packed.bytes[i / 8] |= static_cast<unsigned char>(1 << i % 8);
      std::memcpy(packed.bytes + length, &wide[i], 2);
      length += 2;
    }
    std::memset(packed.bytes + length, 0, 8);
    return length;
  }

  static std::uint64_t hash_of(const Packed& packed, std::size_t length) {
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (std::size_t at = 0; at < length; at += 8) {
      std::uint64_t word;
      std::memcpy(&word, packed.bytes + at, 8);
      hash = (hash ^ word) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return hash * 0xc4ceb9fe1a85ec53;
  }

  const unsigned char* place(std::uint32_t number) const {
    const std::uint64_t at = places_[number];
    return chunks_[at / kChunkBytes].get() + at % kChunkBytes;
  }

  void append(const Packed& packed, std::size_t length) {
    if (chunks_.empty() || used_ + length + 1 > kChunkBytes) {
      chunks_.push_back(std::make_unique<unsigned char[]>(kChunkBytes));
      used_ = 0;
    }
    places_.push_back((chunks_.size() - 1) * kChunkBytes + used_);
    unsigned char* to = chunks_.back().get() + used_;
    to[0] = static_cast<unsigned char>(length);
    std::memcpy(to + 1, packed.bytes, length);
    used_ += length + 1;
  }

  void grow() {
    table_.assign(table_.size() * 2, {});
    for (std::uint32_t number = 0; number < places_.size(); ++number) {
      const unsigned char* known = place(number);
      Packed packed{};
      std::memcpy(packed.bytes, known + 1, known[0]);
      const std::uint64_t hash = hash_of(packed, known[0]);
      std::size_t at = hash & (table_.size() - 1);
      while (table_[at].number != 0) at = (at + 1) & (table_.size() - 1);
      table_[at] = {static_cast<std::uint32_t>(hash >> 32), number + 1};
    }
  }

  std::vector<Slot> table_;
  std::vector<std::uint64_t> places_;
  std::vector<std::unique_ptr<unsigned char[]>> chunks_;
  std::size_t used_ = 0;
};

}  // namespace cachalot::specs

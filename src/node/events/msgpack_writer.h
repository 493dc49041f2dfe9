// As much of MessagePack as KV events need: shortest forms only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::events {

class MsgpackWriter {
 public:
  explicit MsgpackWriter(std::string& to) : to_(to) {}

  void nil() { put(0xc0); }
  void natural(std::uint64_t value) {
    if (value < 0x80) {
      put(static_cast<unsigned>(value));
    } else if (value <= 0xff) {
      head(0xcc, value, 1);
    } else if (value <= 0xffff) {
      head(0xcd, value, 2);
    } else if (value <= 0xffffffff) {
      head(0xce, value, 4);
    } else {
      head(0xcf, value, 8);
    }
  }
  void real(double value) { head(0xcb, std::bit_cast<std::uint64_t>(value), 8); }
  void text(std::string_view value) {
    if (value.size() < 32) {
      put(0xa0 | static_cast<unsigned>(value.size()));
    } else if (value.size() <= 0xff) {
      head(0xd9, value.size(), 1);
    } else if (value.size() <= 0xffff) {
      head(0xda, value.size(), 2);
    } else {
      head(0xdb, value.size(), 4);
    }
    to_.append(value);
  }
  void bytes(std::string_view value) {
    if (value.size() <= 0xff) {
      head(0xc4, value.size(), 1);
    } else if (value.size() <= 0xffff) {
      head(0xc5, value.size(), 2);
    } else {
      head(0xc6, value.size(), 4);
    }
    to_.append(value);
  }
  // `size` items follow.
  void array(std::size_t size) {
    if (size < 16) {
      put(0x90 | static_cast<unsigned>(size));
    } else if (size <= 0xffff) {
      head(0xdc, size, 2);
    } else {
      head(0xdd, size, 4);
    }
  }
  // `size` pairs follow, fewer than 16.
  void map(std::size_t size) { put(0x80 | static_cast<unsigned>(size)); }

 private:
  void head(unsigned kind, std::uint64_t value, int value_bytes) {
    put(kind);
    for (int i = value_bytes - 1; i >= 0; --i) put(static_cast<unsigned>(value >> (8 * i) & 0xff));
  }
  void put(unsigned byte) { to_.push_back(static_cast<char>(byte)); }

  std::string& to_;
};

}  // namespace cachalot::events

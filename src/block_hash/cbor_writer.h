// As much of CBOR (RFC 8949) as block hashes need, in its canonical form: shortest heads only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::block_hash {

class CborWriter {
 public:
  explicit CborWriter(std::string& to) : to_(to) {}

  void integer(std::int64_t value) {
    if (value >= 0) {
      head(0, static_cast<std::uint64_t>(value));
    } else {
      head(1, static_cast<std::uint64_t>(-1 - value));
    }
  }
  void natural(std::uint64_t value) { head(0, value); }
  void bytes(const void* data, std::size_t size) {
    head(2, size);
    to_.append(static_cast<const char*>(data), size);
  }
  void text(std::string_view value) {
    head(3, value.size());
    to_.append(value);
  }
  // `size` items follow.
  void array(std::size_t size) { head(4, size); }
  void null() { to_.push_back('\xf6'); }

 private:
  void head(unsigned major, std::uint64_t value) {
    if (value < 24) {
      put(major << 5 | static_cast<unsigned>(value));
    } else if (value <= 0xff) {
      head_of(major, 24, value, 1);
    } else if (value <= 0xffff) {
      head_of(major, 25, value, 2);
    } else if (value <= 0xffffffff) {
      head_of(major, 26, value, 4);
    } else {
      head_of(major, 27, value, 8);
    }
  }
  void head_of(unsigned major, unsigned kind, std::uint64_t value, int value_bytes) {
    put(major << 5 | kind);
    for (int i = value_bytes - 1; i >= 0; --i) put(static_cast<unsigned>(value >> (8 * i) & 0xff));
  }
  void put(unsigned byte) { to_.push_back(static_cast<char>(byte)); }

  std::string& to_;
};

}  // namespace cachalot::block_hash

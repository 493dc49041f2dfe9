// The bytes that a fuzz target is given, taken from the front. After the last one zeros come.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace cachalot::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t bytes)
      : rest_(reinterpret_cast<const std::byte*>(data), bytes) {}

  bool is_empty() const { return rest_.empty(); }
  template <class T>
  T take() {
    T value{};
    fill(&value, sizeof value);
    return value;
  }
  // A number below `limit`, of one byte.
  std::uint32_t below(std::uint32_t limit) { return take<std::uint8_t>() % limit; }
  // At most `bytes`, fewer at the end.
  std::span<const std::byte> take_bytes(std::size_t bytes) {
    const auto taken = rest_.first(std::min(bytes, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  // All that is left.
  std::span<const std::byte> rest() { return take_bytes(rest_.size()); }
  std::string text() {
    const auto bytes = rest();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // The first bytes of `value`, others stay.
  template <class T>
  void change(T& value) {
    const auto bytes = take_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
  }

 private:
  void fill(void* to, std::size_t bytes) {
    const auto taken = take_bytes(bytes);
    if (!taken.empty()) std::memcpy(to, taken.data(), taken.size());
  }

  std::span<const std::byte> rest_;
};

}  // namespace cachalot::fuzz

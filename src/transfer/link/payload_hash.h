// XXH3-64 of a payload, in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cachalot::transfer {

class PayloadHash {
 public:
  PayloadHash();
  ~PayloadHash();
  void reset();
  void add(const void* bytes, std::size_t count);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cachalot::transfer

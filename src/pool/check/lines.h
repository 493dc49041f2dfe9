// Sealed lines that may never have been written.
#pragma once

#include <cstdint>

#include "pool/format/access.h"

namespace cachalot::pool {

enum class LineState { kGood, kBlank, kDamaged };

// @param value  filled if the line is good
template <class T>
LineState look_at_line(const Access& access, std::uint64_t offset, T& value) {
  if (access.region.read_as(offset, value)) return LineState::kGood;
  const bool is_blank = access.domain().read_line(access.region.at(offset)) == memory::Line{};
  return is_blank ? LineState::kBlank : LineState::kDamaged;
}

inline bool is_damaged(const Access& access, std::uint64_t offset) {
  memory::Line line;
  return look_at_line(access, offset, line) == LineState::kDamaged;
}

}  // namespace cachalot::pool

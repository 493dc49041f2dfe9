#include "testing/memory/lossy_device.h"

#include <algorithm>

namespace cachalot::memory {

void LossyDevice::store(std::uint64_t number, std::uint8_t mask, const Line& value) {
  Line& line = data()[number];
  for (unsigned word = 0; word < 8; ++word) {
    if ((mask >> word & 1) == 0) continue;
    if (!history_.empty())
      history_[moment_ % kHistoryWords] = {number * 8 + word, line.words[word]};
    line.words[word] = value.words[word];
    ++moment_;
    note(number * 8 + word);
    note(value.words[word]);
  }
}

Line LossyDevice::line_at(std::uint64_t number, std::uint64_t moment) const {
  Line result = line(number);
  if (history_.empty()) return result;
  std::uint64_t oldest = std::max(moment, history_begin_);
  if (moment_ > kHistoryWords) oldest = std::max(oldest, moment_ - kHistoryWords);
  for (std::uint64_t at = moment_; at > oldest; --at) {
    const Change& change = history_[(at - 1) % kHistoryWords];
    if (change.word / 8 == number) result.words[change.word % 8] = change.old_value;
  }
  return result;
}

}  // namespace cachalot::memory

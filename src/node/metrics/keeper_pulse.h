// Whether a keeper's thread still works, by the count of its publications: some hundred a second, idle or not.
#pragma once

#include <cstdint>

namespace cachalot::node {

class KeeperPulse {
 public:
  // Longer than any work of the keeper's thread takes, and than a stall of the machine.
  static constexpr std::uint64_t kPatienceNs = 30'000'000'000;

  // @param publications  what the pool says at `now_ns`
  // @return false: the count has been the same for kPatienceNs
  bool is_beating(std::uint32_t publications, std::uint64_t now_ns) {
    if (!has_count_ || publications != count_) {
      has_count_ = true;
      count_ = publications;
      since_ns_ = now_ns;
    }
    return now_ns - since_ns_ < kPatienceNs;
  }

 private:
  bool has_count_ = false;
  std::uint32_t count_ = 0;
  std::uint64_t since_ns_ = 0;
};

}  // namespace cachalot::node

// On which cores copies from and to each part of a pool run: a home for each set of cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace cachalot::kv {

class CopyHomes {
 public:
  // @param least_bytes  fewer bytes of one home are copied by the caller: a thread costs as much as the way to another
  //                     socket. Not measured
  explicit CopyHomes(std::uint64_t least_bytes = std::uint64_t{1} << 20)
      : least_bytes_(least_bytes) {}

  // @param cores  ascending; none: any. Parts with the same cores have one home
  void add(const std::byte* base, std::uint64_t bytes, std::vector<int> cores) {
    const auto same = std::find(cores_.begin(), cores_.end(), cores);
    parts_.push_back({base, bytes, static_cast<std::size_t>(same - cores_.begin())});
    if (same == cores_.end()) cores_.push_back(std::move(cores));
  }

  std::uint64_t least_bytes() const { return least_bytes_; }
  std::size_t count() const { return cores_.size(); }
  const std::vector<int>& cores(std::size_t home) const { return cores_[home]; }

  // Of the part that has this address. Memory of no part, as of a device that was added to the pool: 0, the first part's.
  std::size_t of(const std::byte* at) const {
    for (const Part& part : parts_) {
      if (!std::less<>()(at, part.base) && static_cast<std::uint64_t>(at - part.base) < part.bytes)
        return part.home;
    }
    return 0;
  }

 private:
  struct Part {
    const std::byte* base;
    std::uint64_t bytes;
    std::size_t home;
  };
  std::uint64_t least_bytes_;
  std::vector<Part> parts_;
  std::vector<std::vector<int>> cores_;  // of each home
};

}  // namespace cachalot::kv

// Divides a call's blocks among threads that run where the blocks' memory is near.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "kv/cpu/copy_homes.h"
#include "os/topology.h"

namespace cachalot::kv {

// Calls f(blocks) for shares of the blocks, each block of the home of its first extent; the order of the blocks of one home
// stays. A thread of each share is started on the cores of its home; where it cannot be moved there, it copies all the
// same. The caller's own cores stay as they are: it takes one share if it runs in that home now, and homes of few bytes.
// Returns when all have returned.
// @param threads      divided among the other homes by their blocks, at least one for each
// @param block_bytes  that are copied of each block
// @cost  a copy of the list of blocks; a thread for each share, tens of microseconds
template <class Block, class F>
void in_homes(const CopyHomes& homes, std::uint32_t threads, std::uint64_t block_bytes,
              std::span<const Block> blocks, F&& f) {
  std::vector<std::vector<Block>> groups(homes.count());
  for (const Block& block : blocks) groups[homes.of(block.pool.front().at)].push_back(block);

  std::vector<std::span<const Block>> own;  // the caller's
  std::vector<std::thread> others;
  others.reserve(threads + homes.count());
  bool can_start = true;
  const auto start = [&](std::span<const Block> share, const std::vector<int>& cores) {
    try {
      if (can_start) {
        others.emplace_back([&f, &cores, share] {
          if (!cores.empty()) (void)os::run_on(cores);
          f(share);
        });
        return;
      }
    } catch (const std::system_error&) {
      can_start = false;  // no thread to be had: the caller takes the rest
    }
    own.push_back(share);
  };

  const int here = os::current_core();
  bool has_share = false;
  std::size_t before = 0;  // blocks of earlier homes
  for (std::size_t home = 0; home < groups.size(); ++home) {
    const std::span<const Block> group = groups[home];
    if (group.empty()) continue;
    const std::size_t after = before + group.size();
    const std::size_t part = threads * after / blocks.size() - threads * before / blocks.size();
    before = after;
    if (group.size() * block_bytes < homes.least_bytes()) {
      own.push_back(group);
      continue;
    }
    const std::vector<int>& cores = homes.cores(home);
    const std::size_t shares = std::clamp<std::size_t>(part, 1, group.size());
    for (std::size_t i = 0; i < shares; ++i) {
      const std::size_t first = group.size() * i / shares, last = group.size() * (i + 1) / shares;
      const std::span<const Block> share = group.subspan(first, last - first);
      if (!has_share && (cores.empty() || std::binary_search(cores.begin(), cores.end(), here))) {
        has_share = true;
        own.push_back(share);
      } else {
        start(share, cores);
      }
    }
  }
  for (const std::span<const Block> share : own) f(share);
  for (std::thread& other : others) other.join();
}

}  // namespace cachalot::kv

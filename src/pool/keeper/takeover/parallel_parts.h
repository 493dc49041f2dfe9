// Splits a loop over many items among a few threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace cachalot::pool {

// Calls f(part, first item, end) for `parts` parts of `items`, each in a thread of its own; parts end
// between units.
template <class F>
void in_parallel_parts(std::uint32_t parts, std::uint32_t items, std::uint32_t unit, F&& f) {
  const std::uint64_t units = (std::uint64_t{items} + unit - 1) / unit;
  const auto begin_of = [&](std::uint32_t part) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(units * part / parts * unit, items));
  };
  std::vector<std::jthread> threads;
  for (std::uint32_t part = 1; part < parts; ++part) {
    const auto work = [&, part] { f(part, begin_of(part), begin_of(part + 1)); };
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {  // the system has no thread left: it takes longer
      work();
    }
  }
  f(0u, begin_of(0), begin_of(1));
}

}  // namespace cachalot::pool

// Divides a call's work among threads that live as long as the call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace cachalot::kv {

// Calls f(first, last) for consecutive shares of [0, count), each in a thread of its own but the
// first, which is the caller's. Returns when all have returned.
// @cost  starting and ending a thread: tens of microseconds each; none with one share
template <class F>
void in_threads(std::uint32_t threads, std::size_t count, F&& f) {
  const std::size_t shares = std::min<std::size_t>(threads, std::max<std::size_t>(count, 1));
  std::vector<std::thread> others;
  if (shares > 1) others.reserve(shares - 1);
  std::size_t started = 1;
  try {
    for (; started < shares; ++started) {
      others.emplace_back([&f, first = count * started / shares,
                           last = count * (started + 1) / shares] { f(first, last); });
    }
  } catch (const std::system_error&) {
    // No thread to be had: the caller takes the rest.
  }
  f(std::size_t{0}, count / shares);
  if (started < shares) f(count * started / shares, count);
  for (std::thread& other : others) other.join();
}

}  // namespace cachalot::kv

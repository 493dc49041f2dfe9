// Calls of a backend for one small object, for tests that only ask how they end.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <vector>

#include "storage/backend.h"
#include "testing/storage/chains.h"

namespace cachalot::storage {

// Far below soon(), and far above what a busy machine takes for a call.
inline constexpr std::uint64_t kAtOnceNs = 8'000'000'000;

inline Status exists_one(Backend& backend, std::uint64_t deadline_ns) {
  const ObjectKey key = Chain(1, 1, 4096).key(0);
  bool is_there = false;
  return backend.exists({&key, 1}, {&is_there, 1}, deadline_ns);
}
inline Status get_one(Backend& backend, std::uint64_t deadline_ns) {
  Chain chain(1, 1, 4096);
  std::vector<Room> room = chain.room(0);
  Get get{chain.key(0), room};
  const Status whole = backend.get({&get, 1}, deadline_ns);
  return whole ? get.status : whole;
}
inline Status put_one(Backend& backend, std::uint64_t deadline_ns) {
  const Chain chain(1, 1, 4096);
  const std::vector<Bytes> body = chain.body(0);
  Put put{chain.head(0), body};
  const Status whole = backend.put({&put, 1}, deadline_ns);
  return whole ? put.status : whole;
}
inline Status list_all(Backend& backend, std::uint64_t deadline_ns) {
  return backend.list([](const ObjectHead&) { return true; }, deadline_ns);
}

// The most memory that this process has had.
inline std::uint64_t resident_kib() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss);
}

}  // namespace cachalot::storage

// For tests: a device without memory that keeps all the rules, and whose work fails when it is told to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "device_memory/backend.h"

namespace cachalot::device_memory {

class FaultyBackend final : public Backend {
 public:
  static constexpr std::uint64_t kGranule = 64;
  explicit FaultyBackend(std::uint64_t granule_bytes = kGranule) : Backend(granule_bytes) {}
  ~FaultyBackend() override { undo_all(); }

  const char* name() const override { return "faulty"; }
  std::string description() const override { return "no memory"; }

  // The `nth` call of this name from now on fails, counted from 1; and all `more` behind it.
  void fail(const std::string& call, std::uint64_t nth, std::uint64_t more = 0,
            Code code = Code::kIo) {
    const std::lock_guard lock(mutex_);
    failures_[call] = {.first = nth, .last = nth + more, .code = code};
  }
  void heal() {
    const std::lock_guard lock(mutex_);
    failures_.clear();
  }
  // What runs inside each call of the device; for tests of what happens meanwhile.
  std::function<void(const std::string& call)> inside = [](const std::string&) {};

 private:
  struct Failure {
    std::uint64_t first = 0, last = 0, calls = 0;
    Code code = Code::kIo;
  };

  Status meet(const char* call) {
    inside(call);
    const std::lock_guard lock(mutex_);
    const auto failure = failures_.find(call);
    if (failure == failures_.end()) return {};
    const std::uint64_t nth = ++failure->second.calls;
    if (nth < failure->second.first || nth > failure->second.last) return {};
    return Error::make(failure->second.code, "%s: told to fail", call);
  }

  Result<Address> do_reserve(std::uint64_t bytes) override {
    CACHALOT_TRY(meet("reserve"));
    return next_.fetch_add(bytes + granularity_bytes());
  }
  Status do_free(Address, std::uint64_t) override { return meet("free_range"); }
  Result<std::uint64_t> do_create(std::uint64_t) override {
    CACHALOT_TRY(meet("create"));
    return std::uint64_t{0};
  }
  Status do_release(const Memory&) override { return meet("release"); }
  Status do_map(Address, const Memory&) override { return meet("map"); }
  Status do_set_access(const Span&, Access) override { return meet("set_access"); }
  Status do_unmap(const Span&) override { return meet("unmap"); }

  std::mutex mutex_;
  std::map<std::string, Failure> failures_;
  std::atomic<Address> next_{1 << 30};
};

}  // namespace cachalot::device_memory

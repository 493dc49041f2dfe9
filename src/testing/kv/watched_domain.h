// For tests: a coherence domain that counts what a GPU's copies ask of it, and reads and writes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "memory/coherence.h"

namespace cachalot::kv {

class WatchedDomain final : public memory::Domain {
 public:
  explicit WatchedDomain(memory::DomainKind kind) : kind_(kind) {}
  memory::DomainKind kind() const override { return kind_; }
  bool writes_whole_lines() const override { return true; }
  void write_lines(void*, const memory::Line*, std::size_t) override {}
  void read_lines(const void*, std::size_t, memory::Line*) override {}
  void gather_lines(const void* const*, std::size_t, memory::Line*) override {}
  void write_bulk(void*, const void*, std::size_t, memory::FusedHash*) override {}
  void read_bulk(void*, const void*, std::size_t, memory::FusedHash*) override {}
  void complete() override {}
  void prepare_read(const memory::Extent* extents, std::size_t count) override {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) bytes += extents[i].bytes;
    {
      const std::lock_guard lock(mutex_);
      flushed.push_back(bytes);
    }
    if (on_flush) on_flush();
  }
  void order() override { ++orders; }

  std::vector<std::uint64_t> flushed;  // bytes, of each call
  std::atomic<int> orders = 0;
  std::function<void()> on_flush;

 private:
  memory::DomainKind kind_;
  std::mutex mutex_;
};

}  // namespace cachalot::kv

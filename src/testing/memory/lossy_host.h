// One simulated host's view of the pool: a Domain whose cache and write buffer show everything that
// a host without hardware coherence may show, and nothing that it may not.
//
//   write     goes into the write buffer; from there word by word to the device, at any time
//   order     closes what this fiber wrote into a group; the words may still sit in the buffer
//   complete  drains all groups up to that one, others running in between
//   read      maybe drains; drops every line from the cache; loads, from the cache where a prefetch
//             was faster, else a whole line from the device; others running in between
//
// Addresses handed out by view() are bare address space: a load or store that bypasses this
// interface is a segmentation fault.
//
// Fibers are the cores of the host. What one of them wrote is seen by itself at once, by the others
// of this host once it is ordered, by other hosts once it has drained.
// @threads  one; inside a fiber every function may run other fibers before it returns
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/coherence.h"
#include "memory/pool_view.h"
#include "testing/memory/host_cache.h"
#include "testing/memory/pages.h"
#include "testing/memory/write_buffer.h"

namespace cachalot::memory {

class LossyMemory;

class LossyHost final : public Domain {
 public:
  // Made by LossyMemory::add_host().
  explicit LossyHost(LossyMemory& memory);

  // Where this host sees the devices.
  PoolView view() const;

  // What the protocol may not know: for tests of this domain.
  bool has_cached(const void* at) const { return cache_.has(line_number(at, 1)); }
  std::size_t buffered_lines() const { return buffer_.lines(); }

  // complete() for another fiber, which is dead: what a process stored has left its core when it has exited.
  void complete_for(std::size_t fiber);

  // One spontaneous event of this host (LossyMemory's tick).
  void act_up();

  DomainKind kind() const override { return DomainKind::kLossy; }
  bool writes_whole_lines() const override { return false; }
  void write_lines(void* to, const Line* lines, std::size_t count) override;
  void read_lines(const void* from, std::size_t count, Line* lines) override;
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override;
  void write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override;
  void read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override;
  void write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) override;
  void prepare_read(const Extent* extents, std::size_t count) override;
  void read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) override;
  void order() override;
  void complete() override;

 private:
  // Moments (LossyDevice) at which a fiber's last two reads began: what a broken fence can reach.
  struct ReadTimes {
    std::uint64_t previous = 0;
    std::uint64_t current = 0;
  };
  template <class LineAt>
  void read_each(std::size_t count, LineAt line_at, Line* lines);

  std::uint64_t line_number(const void* at, std::size_t count) const;
  void begin_read();
  void invalidate(std::uint64_t line);
  void load(std::uint64_t line, Line& out);
  void load_split(std::uint64_t line, Line& out);
  void load_early(std::uint64_t line, Line& out);
  void write(std::uint64_t line, const Line& value);
  void write_cached(std::uint64_t line, const Line& value);
  void reach_device(const WriteBuffer::Drained& drained);
  void drain_through(std::uint64_t stamp);
  bool flushes_late(std::uint64_t line) const;
  void flush_late(std::uint64_t line);

  LossyMemory& memory_;
  HostCache cache_;
  WriteBuffer buffer_;
  unsigned device_shift_;  // log2 of the distance between two devices' addresses
  Pages addresses_;
  unsigned char* base_;
  std::vector<ReadTimes> read_times_;     // by fiber
  std::vector<std::uint64_t> loaded_at_;  // by line; only where kR3FenceBeforeFlush is broken
};

}  // namespace cachalot::memory

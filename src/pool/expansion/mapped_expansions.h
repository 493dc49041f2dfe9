// Expansions as a process maps them: each behind the one before, in the addresses that the pool's first device keeps.
// So a block's address does not depend on the device that it lies on.
//
// What is mapped stays mapped until another device takes its place: a reader that is late reads bytes that it throws
// away (R6), and no process stores into blocks that were given up.
//
// Invariants
//   1. mapped_[i] lies behind mapped_[i - 1]; the first one behind the pool's first device.
//   2. `version_` is that of the table that mapped_ was last compared with; 0: none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "os/shared_file.h"
#include "pool/expansion/expansion_memory.h"

namespace cachalot::pool {

class MappedExpansions final : public ExpansionMemory {
 public:
  struct Range {
    std::byte* data;
    std::uint64_t bytes;
  };
  // Told of each range that becomes accessible. If it fails, the range does not.
  using Listener = std::function<Status(const Range&)>;

  // @param base  of the pool's first device, with addresses for all blocks behind it
  MappedExpansions(std::byte* base, bool read_only, os::Owners owners)
      : base_(base), read_only_(read_only), owners_(owners) {}

  std::uint32_t follow(const Access& access, std::uint32_t area, std::uint32_t epoch) override;
  std::size_t map(const Access& access, std::span<const Expansion> expansions,
                  Status& why_not) override;
  Status flush() override;
  std::optional<std::string> find_removed(std::span<const Expansion> expansions) const override;
  Result<Expansion> look_at(const Access& access, const std::string& path) const override;

  // From now on, and of what is mapped. While there is a listener, no other device takes the place of one that it was
  // told of: it may have locked those pages. An empty one ends that.
  Status listen(Listener listener);
  // What is mapped now.
  std::vector<Range> ranges() const;

 private:
  struct Mapped {
    Expansion expansion;
    Range range;
    std::string file;  // and what it named
    dev_t device;
    ino_t inode;
  };

  std::size_t map_locked(const Access& access, std::span<const Expansion> expansions,
                         Status& why_not);
  Status map_next(const Access& access, const Expansion& expansion);

  std::byte* const base_;
  const bool read_only_;
  const os::Owners owners_;

  mutable std::mutex mutex_;
  std::vector<Mapped> mapped_;
  std::byte* told_until_ = nullptr;  // the listener was told of ranges up to here
  Listener listener_;
  std::uint64_t version_ = 0;
  std::uint32_t accessible_ = 0;   // blocks, of that version
  std::uint64_t retry_at_ns_ = 0;  // not 0: something of this version could not be mapped
};

}  // namespace cachalot::pool

// What KV memory takes, from lengths alone: nothing of it asks an allocator.
//
// Units of unit_bytes; a request of n tokens has ceil(n * token_bytes / unit_bytes) of them in each
// plane. A prefix of k tokens is shared in floor(k * token_bytes / unit_bytes) units a plane, by all
// whose ids say that it is the same.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "replay/allocation/kv_memory.h"

namespace cachalot::replay {

struct KvUnits {
  struct Width {
    std::uint64_t token_bytes = 0;
    std::uint64_t planes = 0;
  };
  std::vector<Width> widths;
  std::uint64_t unit_bytes = 0;

  std::uint64_t units(std::uint64_t tokens) const;
  std::uint64_t full_units(std::uint64_t tokens) const;
};

struct KvFormulaOptions {
  KvUnits units;
  std::uint64_t ahead_tokens = 0;   // that have memory before they are there
  std::uint64_t static_tokens = 0;  // of each slot, from its first request on; 0: by need
  std::uint64_t block_tokens = 0;   // of shared prefixes; 0: nothing is shared
};

class KvFormula final : public KvMemory {
 public:
  explicit KvFormula(const KvFormulaOptions& options) : options_(options) {}

  Status begin(std::size_t slot, const Prompt& prompt) override;
  Status computed(std::size_t slot, const Prompt& prompt) override;
  Status grow(std::size_t slot, std::uint64_t tokens) override;
  void end(std::size_t slot) override;
  std::uint64_t bytes() const override { return units_ * options_.units.unit_bytes; }

  // Of all requests so far: what they did not need because others had it.
  std::uint64_t shared_units() const { return shared_units_; }
  std::uint64_t shared_tokens() const { return shared_tokens_; }

 private:
  struct Slot {
    std::uint64_t units = 0;     // that are there because of this request alone
    std::uint64_t recorded = 0;  // of those, that stay for others
    std::uint64_t shared_tokens = 0;
    std::uint64_t total_tokens = 0;
  };

  void set(Slot& slot, std::uint64_t units);
  std::uint64_t known_blocks(const Prompt& prompt) const;

  KvFormulaOptions options_;
  std::vector<Slot> slots_;
  std::unordered_set<std::uint64_t> known_;
  std::uint64_t units_ = 0;
  std::uint64_t shared_units_ = 0, shared_tokens_ = 0;
};

}  // namespace cachalot::replay

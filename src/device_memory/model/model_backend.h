// A device without memory: it returns addresses that cannot be accessed, and adds up what a GPU's
// driver would have taken for the calls. For replays of millions of operations.
//
// 1. Addresses are beyond what a processor can have and are never given twice. Ranges never touch:
//    what is one too far is in no range.
// 2. The book is the same as that of a real device; only the work is missing.
//
// @cost  0.1 us a call where calls follow each other in a range, 0.3 us at random among 256,000 mappings
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "device_memory/backend.h"
#include "device_memory/model/costs.h"

namespace cachalot::device_memory {

struct ModelOptions {
  CostTable costs = cost_tables().front();
  std::uint64_t granularity_bytes = std::uint64_t{2} << 20;
};

class ModelBackend final : public Backend {
 public:
  // @errors kInvalidArgument: a granularity that is no power of two
  static Result<std::unique_ptr<ModelBackend>> open(const ModelOptions& options = {});

  const char* name() const override { return "model"; }
  // "no memory, costs of GMLake, ASPLOS 2024, Table 1"
  std::string description() const override;

  // What the calls so far would have taken, one after the other.
  std::uint64_t charged_ns() const { return charged_ns_.load(std::memory_order_relaxed); }

 private:
  // Nanoseconds by size, worked out beforehand: a logarithm a call would be half of its cost.
  class Curve {
   public:
    Curve(const CostTable& table, double CallCosts::*call);
    std::uint64_t ns(std::uint64_t bytes) const;

   private:
    static constexpr std::uint64_t kStepBytes = CostTable::kBytes.front();
    static constexpr std::size_t kSteps = CostTable::kBytes.back() / kStepBytes;
    std::array<std::uint64_t, kSteps + 1> ns_;  // for so many steps
  };

  explicit ModelBackend(const ModelOptions& options);

  Result<Address> do_reserve(std::uint64_t bytes) override;
  Status do_free(Address range, std::uint64_t bytes) override;
  Result<std::uint64_t> do_create(std::uint64_t bytes) override;
  Status do_release(const Memory& memory) override;
  Status do_map(Address at, const Memory& memory) override;
  Status do_set_access(const Span& span, Access access) override;
  Status do_unmap(const Span& span) override;

  Status charge(std::uint64_t ns);
  Status charge_span(const Curve& curve, const Span& span);

  const CostTable costs_;
  const Curve create_, release_, map_, set_access_, unmap_;
  std::atomic<Address> next_;
  std::atomic<std::uint64_t> charged_ns_{0};
};

}  // namespace cachalot::device_memory

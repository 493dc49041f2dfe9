#include "device_memory/model/model_backend.h"

#include <bit>
#include <cinttypes>
#include <cmath>

namespace cachalot::device_memory {
namespace {

// Between the halves of the address space that x86 and Arm processors can have: not even a mistake
// finds memory there.
constexpr Address kFirst = std::uint64_t{1} << 60;
constexpr Address kEnd = std::uint64_t{1} << 63;

std::uint64_t whole(double ns) {
  return static_cast<std::uint64_t>(std::llround(ns));
}

}  // namespace

ModelBackend::Curve::Curve(const CostTable& table, double CallCosts::*call) {
  for (std::size_t i = 0; i < ns_.size(); ++i) {
    ns_[i] = whole(interpolate(table, call, i * kStepBytes));
  }
}

std::uint64_t ModelBackend::Curve::ns(std::uint64_t bytes) const {
  const std::uint64_t steps = (bytes + kStepBytes - 1) / kStepBytes;
  if (steps <= kSteps) return ns_[steps];
  return static_cast<std::uint64_t>(static_cast<double>(ns_.back()) * static_cast<double>(steps) /
                                    static_cast<double>(kSteps));
}

ModelBackend::ModelBackend(const ModelOptions& options)
    : Backend(options.granularity_bytes),
      costs_(options.costs),
      create_(costs_, &CallCosts::create),
      release_(costs_, &CallCosts::release),
      map_(costs_, &CallCosts::map),
      set_access_(costs_, &CallCosts::set_access),
      unmap_(costs_, &CallCosts::unmap),
      next_(kFirst) {}

Result<std::unique_ptr<ModelBackend>> ModelBackend::open(const ModelOptions& options) {
  if (!std::has_single_bit(options.granularity_bytes) || options.granularity_bytes >= kFirst) {
    return Error::make(Code::kInvalidArgument,
                       "model: granularity of %" PRIu64
                       " bytes; expected a power of two below 2^60",
                       options.granularity_bytes);
  }
  return std::unique_ptr<ModelBackend>(new ModelBackend(options));
}

std::string ModelBackend::description() const {
  return std::string("no memory, costs of ") + costs_.source;
}

Status ModelBackend::charge(std::uint64_t ns) {
  charged_ns_.fetch_add(ns, std::memory_order_relaxed);
  return {};
}

// Handles of a span are most often of one size, so each mapping is charged as their mean.
Status ModelBackend::charge_span(const Curve& curve, const Span& span) {
  if (costs_.spanning == Spanning::kByBytes) return charge(curve.ns(span.bytes));
  return charge(span.mappings * curve.ns(span.bytes / span.mappings));
}

Result<Address> ModelBackend::do_reserve(std::uint64_t bytes) {
  // A granule more than asked for stays free behind the range.
  const std::uint64_t taken = bytes + granularity_bytes();
  Address range = next_.load(std::memory_order_relaxed);
  do {
    if (taken < bytes || taken > kEnd - range) {
      return Error::make(Code::kNoSpace,
                         "reserve: %" PRIu64 " bytes; expected no more than the %" PRIu64
                         " of addresses left",
                         bytes, kEnd - range);
    }
  } while (!next_.compare_exchange_weak(range, range + taken, std::memory_order_relaxed));
  CACHALOT_TRY(charge(whole(costs_.at.front().reserve)));
  return range;
}

Status ModelBackend::do_free(Address, std::uint64_t) {
  return charge(whole(costs_.at.front().free_range));
}

// There is none, so any number will do.
Result<std::uint64_t> ModelBackend::do_create(std::uint64_t bytes) {
  CACHALOT_TRY(charge(create_.ns(bytes)));
  return std::uint64_t{0};
}

Status ModelBackend::do_release(const Memory& memory) {
  return charge(release_.ns(memory.bytes));
}

Status ModelBackend::do_map(Address, const Memory& memory) {
  return charge(map_.ns(memory.bytes));
}

Status ModelBackend::do_set_access(const Span& span, Access) {
  return charge_span(set_access_, span);
}

Status ModelBackend::do_unmap(const Span& span) {
  return charge_span(unmap_, span);
}

}  // namespace cachalot::device_memory

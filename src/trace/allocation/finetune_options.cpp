#include "trace/allocation/finetune_options.h"

#include <cinttypes>

namespace cachalot::trace {
namespace {

Status check_number(const char* name, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return Error::make(Code::kInvalidArgument, "%s: %" PRIu64 ", expected %" PRIu64 " to %" PRIu64,
                     name, value, low, high);
}

}  // namespace

// The bounds keep all sums of sizes far below 2^64.
Status FinetuneOptions::check() const {
  CACHALOT_TRY(check_number("gpus", gpus, 1, 65536));
  CACHALOT_TRY(check_number("batch", batch, 1, 1024));
  CACHALOT_TRY(check_number("sequence", sequence, 2, 65536));
  CACHALOT_TRY(check_number("lora rank", lora_rank, 0, model.hidden));
  CACHALOT_TRY(check_number("iterations", iterations, 1, 1'000'000));
  if (dynamic_padding >= 0 && dynamic_padding < 1) return {};
  return Error::make(Code::kInvalidArgument, "dynamic padding: %g, expected 0 to below 1",
                     dynamic_padding);
}

}  // namespace cachalot::trace

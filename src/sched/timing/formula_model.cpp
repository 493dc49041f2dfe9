#include "sched/timing/formula_model.h"

#include <algorithm>
#include <cmath>

namespace cachalot::sched {
namespace {

struct Named {
  const char* name;
  double value;
};

Status check_all(std::span<const Named> numbers, bool positive) {
  for (const Named& number : numbers) {
    if (std::isfinite(number.value) && (positive ? number.value > 0 : number.value >= 0)) continue;
    return Error::make(Code::kInvalidArgument, "%s is %g, expected a number %s 0", number.name,
                       number.value, positive ? "above" : "not below");
  }
  return {};
}

}  // namespace

Result<FormulaModel> FormulaModel::make(const FormulaParameters& p) {
  const Named positive[] = {{"layers", p.layers},
                            {"width", p.width},
                            {"peak_flops", p.peak_flops},
                            {"correction", p.correction},
                            {"memory_bytes_per_second", p.memory_bytes_per_second}};
  const Named others[] = {{"a", p.a},
                          {"b", p.b},
                          {"weight_bytes", p.weight_bytes},
                          {"kv_bytes_per_token", p.kv_bytes_per_token},
                          {"step_overhead_s", p.step_overhead_s}};
  CACHALOT_TRY(check_all(positive, true));
  CACHALOT_TRY(check_all(others, false));
  return FormulaModel(p);
}

double FormulaModel::flops(double tokens) const {
  return p_.layers * (p_.a * tokens * tokens * p_.width + p_.b * tokens * p_.width * p_.width);
}

double FormulaModel::prefill_compute_seconds(std::uint64_t input_tokens,
                                             std::uint64_t hit_tokens) const {
  const double input = static_cast<double>(input_tokens);
  const double hit = std::min(input, static_cast<double>(hit_tokens));
  return p_.correction * (flops(input) - flops(hit)) / p_.peak_flops;
}

double FormulaModel::prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const {
  if (hit_tokens >= input_tokens) return 0;
  return p_.step_overhead_s + prefill_compute_seconds(input_tokens, hit_tokens);
}

double FormulaModel::step_seconds(std::span<const PrefillPart> prefill,
                                  const DecodePart& decode) const {
  double seconds = 0;
  for (const PrefillPart& part : prefill) {
    seconds += prefill_compute_seconds(part.context_tokens + part.new_tokens, part.context_tokens);
  }
  if (decode.sequences != 0) {
    const double bytes =
        p_.weight_bytes + p_.kv_bytes_per_token * static_cast<double>(decode.context_tokens);
    seconds += bytes / p_.memory_bytes_per_second;
  }
  return seconds == 0 ? 0 : seconds + p_.step_overhead_s;
}

}  // namespace cachalot::sched

#include "node/metrics/miss_metrics.h"

namespace cachalot::node {
namespace {

using enum MetricType;

constexpr MetricFamily kCauses = {"cachalot_miss_cause", kGauge, "",
                                  "1: this may be why blocks were missed that prompts asked for. "
                                  "`cachalot pool info` says more."};

}  // namespace

void write_miss_metrics(Exposition& exposition, const MissCauses& causes) {
  exposition.begin(kCauses);
  for (const auto& [cause, is_there] : causes)
    exposition.sample({"reason", cause}, is_there ? 1 : 0);
}

}  // namespace cachalot::node

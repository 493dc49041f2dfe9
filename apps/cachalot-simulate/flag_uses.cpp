#include "flag_uses.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/words.h"

namespace cachalot::apps {
namespace {

struct FlagUse {
  const char* flag;
  unsigned uses;                 // one of these
  const char* with;              // what has them, by flags
  unsigned refused_without = 0;  // where the run has none of these, the flag is an error
};

constexpr const char* kWithPool = "with --shared-pool or --pool-capacity-blocks";
constexpr const char* kWithStorage = "with --storage-capacity-blocks";
constexpr const char* kWithPeers = "with --peers";
constexpr const char* kWithTransfers =
    "with transfers between instances: --decode, --peers, a pool, or --policy conductor with two "
    "caches or more";
constexpr const char* kWithDecode = "with --decode or --colocated";
constexpr const char* kWithPrediction =
    "with --admission predictive, --tbt-slo-ms, and --decode or --colocated";
constexpr const char* kWithReduceLink = "with --profile of instances of several GPUs";
constexpr const char* kWithRecordedRun =
    "with a recorded run: --trace-format vllm-run, vllm-bench, sglang-bench or aiperf-run";
constexpr const char* kWithFormula =
    "with --decode or --colocated, and with the formula: without --calibration and --profile";

constexpr FlagUse kUses[] = {
    {"node-capacity-blocks", kNodeCaches,
     "without --shared-pool, or without --pool-capacity-blocks"},
    {"pool-link-gb-s", kPool, kWithPool},
    {"pool-link-latency-us", kPool, kWithPool},
    {"pool-gb-s", kPool, kWithPool},
    {"storage-gb-s", kStorage, kWithStorage},
    {"storage-latency-us", kStorage, kWithStorage},
    {"peers", kSeveral, "with two instances or more"},
    {"peer-cell", kPeers, kWithPeers, kPeers},
    {"peer-gb-s", kPeers, kWithPeers, kPeers},
    {"peer-wait-ms", kPeers, kWithPeers, kPeers},
    {"keep-peer-copies", kPeers, kWithPeers, kPeers},
    {"link-gb-s", kLinkSpeed, kWithTransfers},
    {"link-latency-us", kLinkLatency, kWithTransfers},
    {"operation-bytes", kOperations, kWithTransfers},
    {"operations-in-flight", kOperationSize, "with --operation-bytes"},
    {"balancing-threshold", kMoves, "with --policy conductor and two caches or more"},
    {"decode-capacity-tokens", kDecodeSide | kColocated, kWithDecode},
    {"decode-sequences", kDecodeSide | kColocated, kWithDecode},
    {"tbt-slo-ms", kDecodeSide | kColocated | kRecordedRun, kWithDecode},
    {"assumed-decode-s", kPrediction, kWithPrediction},
    {"decode-prediction", kPrediction, kWithPrediction},
    {"decode-check", kDecodeCheck, "with --admission reject_on_load, --tbt-slo-ms and --decode"},
    {"seed", kChance, "with --policy random or power_of_two and two instances or more"},
    {"step-tokens", kColocated | kProfile, "with --colocated or --profile"},
    {"engine-block-tokens", kColocated, "with --colocated"},
    {"layerwise-admission", kPromptPlan,
     "with --layerwise on or auto, goal also with --tbt-slo-ms"},
    {"host-gb-s", kHostKv, "with --layerwise swap, on or auto"},
    {"host-kv-gb", kHostKv, "with --layerwise swap, on or auto"},
    {"precision", kFittedModel, "with --calibration"},
    {"decode-memory-gb-s", kFormula, kWithFormula, kTimesOfFormula},
    {"decode-overhead-ms", kFormula, kWithFormula, kTimesOfFormula},
    {"tp-link", kReducePreset,
     "with --profile of instances of several GPUs, without a figure of both --tp-link-gb-s and "
     "--tp-link-us",
     kProfile | kRecordedRun},
    {"tp-link-gb-s", kReduceLink, kWithReduceLink, kProfile | kRecordedRun},
    {"tp-link-us", kReduceLink, kWithReduceLink, kProfile | kRecordedRun},
    {"nic-usd", kRdma, "with --network rdma"},
    {"nic-switch-usd", kRdma, "with --network rdma"},
    {"adapter-usd", kCxl, "with --network cxl or a pool"},
    {"adapter-switch-usd", kCxl, "with --network cxl or a pool"},
    {"rate-scale", kTraceTimes, "without --closed-loop"},
    {"map-by", kMap, "with --map", kMap},
    {"meta", kRecordedRun, kWithRecordedRun, kRecordedRun},
    {"compare", kRecordedRun, kWithRecordedRun, kRecordedRun},
    {"seconds", kComparison, "with --compare of a recorded run (--trace-format vllm-run …)",
     kRecordedRun},
};

}  // namespace

Status check_uses(std::span<const FlagValue> flags, unsigned uses) {
  for (const FlagValue& given : flags) {
    const auto* const use =
        std::ranges::find_if(kUses, [&](const FlagUse& each) { return given.flag == each.flag; });
    if (use == std::end(kUses) || (use->uses & uses) != 0) continue;
    const Error error = Error::make(
        Code::kInvalidArgument, "--%s: %.60s%shas no effect, expected it %s", given.flag.c_str(),
        given.value.c_str(), given.value.empty() ? "" : " ", use->with);
    if (use->refused_without != 0 && (use->refused_without & uses) == 0) return error;
    std::fprintf(stderr, "cachalot: warning: %s\n", base::printable(error.message).c_str());
  }
  return {};
}

}  // namespace cachalot::apps

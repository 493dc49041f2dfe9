#include "varying_flags.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct VaryingFlag {
  const char* name;
  const char* title;  // of an axis; null: the value is no number
};

constexpr VaryingFlag kFlags[] = {
    {"rate-scale", "request rate, multiple of the trace's"},
    {"closed-loop", "requests in flight"},
    {"prefill", "prefill instances"},
    {"decode", "decode instances"},
    {"colocated", "colocated engines"},
    {"node-capacity-blocks", "cache of an instance, blocks"},
    {"pool-capacity-blocks", "pool, blocks"},
    {"storage-capacity-blocks", "storage, blocks"},
    {"link-gb-s", "link of an instance, GB/s"},
    {"link-latency-us", "latency of the links, µs"},
    {"pool-link-gb-s", "link of an instance to the pool, GB/s"},
    {"pool-link-latency-us", "latency of the links to the pool, µs"},
    {"pool-gb-s", "pool for all together, GB/s"},
    {"storage-gb-s", "storage for all together, GB/s"},
    {"storage-latency-us", "latency of the storage, µs"},
    {"peer-cell", "hosts of a cell of peers"},
    {"peer-gb-s", "sent to peers by a host, GB/s"},
    {"peer-wait-ms", "longest wait for peers, ms"},
    {"operation-bytes", "operation of a transfer, bytes"},
    {"operations-in-flight", "operations in flight of a transfer"},
    {"decode-capacity-tokens", "KV of a decode instance, tokens"},
    {"decode-sequences", "most sequences of a decode instance"},
    {"balancing-threshold", "balancing threshold of conductor, ratio of prefixes"},
    {"ttft-slo-ms", "goal for TTFT, ms"},
    {"tbt-slo-ms", "goal for TBT, ms"},
    {"assumed-decode-s", "assumed time of a decode, s"},
    {"step-tokens", "step of a colocated engine, tokens"},
    {"engine-block-tokens", "KV block of a colocated engine, tokens"},
    {"host-gb-s", "bandwidth to the host's memory, GB/s"},
    {"host-kv-gb", "KV in the host's memory, GB"},
    {"decode-memory-gb-s", "memory bandwidth of decode, GB/s"},
    {"decode-overhead-ms", "overhead of a decode step, ms"},
    {"tp-link-gb-s", "all-reduce, GB/s"},
    {"tp-link-us", "latency of an all-reduce, µs"},
    {"shared-pool", nullptr},
    {"peers", nullptr},
    {"keep-peer-copies", nullptr},
    {"eviction", nullptr},
    {"model", nullptr},
    {"hardware", nullptr},
    {"network", nullptr},
    {"decode-prediction", nullptr},
    {"decode-check", nullptr},
};

const VaryingFlag* find_flag(const std::string& name) {
  const auto* const found =
      std::ranges::find_if(kFlags, [&](const VaryingFlag& flag) { return name == flag.name; });
  return found == std::end(kFlags) ? nullptr : found;
}

Flag& flag_of(const Command& command, const std::string& name) {
  return *command.get_option("--" + name);
}

std::string name_of_axis(const std::string& text) {
  return text.substr(0, text.find('='));
}

}  // namespace

Result<SimulateOptions> BoundFlags::with(std::span<const FlagValue> values) const {
  const SimulateOptions saved = options;
  Status status;
  for (const FlagValue& value : values) {
    status = flag_of(command, value.flag).set(value.value);
    if (!status) break;
  }
  SimulateOptions changed = std::move(options);
  options = saved;
  if (!status) return status.error();
  return changed;
}

Result<PolicyRow> parse_policy_row(const BoundFlags& flags, const std::string& text) {
  PolicyRow row;
  row.name = text;
  std::size_t from = std::min(text.find('+'), text.size());
  CACHALOT_TRY_ASSIGN(row.routing, named("--policy", sched::parse_routing(text.substr(0, from))));
  while (from < text.size()) {
    const std::size_t end = std::min(text.find('+', from + 1), text.size());
    const std::string part = text.substr(from + 1, end - from - 1);
    from = end;
    const std::size_t equals = part.find('=');
    FlagValue value{.flag = part.substr(0, equals), .value = {}};
    if (find_flag(value.flag) == nullptr || value.flag == "rate-scale") {
      return Error::make(Code::kInvalidArgument,
                         "--policy: \"+%.60s\" is not a flag that a row can have, expected one as "
                         "in least_loaded+shared-pool+link-gb-s=20",
                         value.flag.c_str());
    }
    const bool is_switch = flag_of(flags.command, value.flag).is_switch();
    value.value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (is_switch == (equals != std::string::npos) || (!is_switch && value.value.empty())) {
      return Error::make(Code::kInvalidArgument, "--policy: \"+%.60s\", expected +%s%s",
                         part.c_str(), value.flag.c_str(), is_switch ? "" : "=VALUE");
    }
    if (is_switch) value.value = "true";
    row.flags.push_back(std::move(value));
  }
  return row;
}

Result<std::array<MapAxis, 2>> parse_map_axes(const std::vector<std::string>& texts) {
  if (texts.size() != 2) {
    return Error::make(
        Code::kInvalidArgument,
        "--map: given %zu time%s, expected two axes, each as --map FLAG=VALUE,VALUE…", texts.size(),
        texts.size() == 1 ? "" : "s");
  }
  std::array<MapAxis, 2> axes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const std::string& text = texts[i];
    const VaryingFlag* const flag = find_flag(name_of_axis(text));
    CACHALOT_CHECK(flag != nullptr && flag->title != nullptr);  // map_axis()
    MapAxis axis{.flag = flag->name, .title = flag->title, .values = {}};
    if (i != 0 && axes[0].flag == axis.flag) {
      return Error::make(Code::kInvalidArgument, "--map: %s twice, expected two flags", flag->name);
    }
    const std::size_t equals = text.find('=');
    const std::string values = equals == std::string::npos ? "" : text.substr(equals + 1);
    CACHALOT_TRY_ASSIGN(axis.values, split_list("--map: " + axis.flag, {values}));
    if (axis.values.size() < 2) {
      return Error::make(Code::kInvalidArgument,
                         "--map: %s has the one value %.60s, expected at least two", flag->name,
                         values.c_str());
    }
    for (auto value = axis.values.begin(); value != axis.values.end(); ++value) {
      if (std::find(axis.values.begin(), value, *value) == value) continue;
      return Error::make(Code::kInvalidArgument, "--map: %s has the value %.60s twice", flag->name,
                         value->c_str());
    }
    axes[i] = std::move(axis);
  }
  return axes;
}

Validator map_axis() {
  return Validator(
      [](std::string& text) -> std::string {
        const VaryingFlag* const flag = find_flag(name_of_axis(text));
        if (flag != nullptr && flag->title != nullptr) return "";
        std::string names;
        for (const VaryingFlag& known : kFlags) {
          if (known.title != nullptr)
            names += (names.empty() ? "" : ", ") + std::string(known.name);
        }
        return "\"" + name_of_axis(text).substr(0, 60) +
               "\" is not a flag that a map can vary, expected one of: " + names;
      },
      "");
}

}  // namespace cachalot::apps

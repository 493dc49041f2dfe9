// Flags of `cachalot simulate` that may differ from row to row of a table, and from cell to cell of a map.
//
//   --policy least_loaded+shared-pool+link-gb-s=20   a policy with flags of its own
//   --map link-gb-s=5,20,100                         an axis
#pragma once

#include <cachalot/result.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "flags.h"
#include "given_flags.h"
#include "sched/policy/routing.h"
#include "simulate_options.h"

namespace cachalot::apps {

// The flags of a command, and the options that they are bound to.
struct BoundFlags {
  Command& command;
  SimulateOptions& options;

  // The options as if these flags had been given, too, later ones over earlier ones; `options` stays as it is.
  // @errors kInvalidArgument: a value that the flag refuses
  Result<SimulateOptions> with(std::span<const FlagValue> values) const;
};

struct PolicyRow {
  std::string name;  // as it was given
  sched::RoutingKind routing = sched::RoutingKind::kConductor;
  std::vector<FlagValue> flags;
};

// @errors kInvalidArgument: no such policy, a flag that rows cannot have, or one without its value
Result<PolicyRow> parse_policy_row(const BoundFlags& flags, const std::string& text);

struct MapAxis {
  std::string flag;
  std::string title;                // with its unit
  std::vector<std::string> values;  // at least two, all different
};

// @errors kInvalidArgument: not exactly two axes of different flags, an axis without two different values
Result<std::array<MapAxis, 2>> parse_map_axes(const std::vector<std::string>& texts);

// For Flag::check of --map: the name is a flag that an axis may have.
Validator map_axis();

}  // namespace cachalot::apps

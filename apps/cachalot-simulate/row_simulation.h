// Simulates rows of `cachalot simulate`: each is a kind of cluster, routing, admission, and layer-wise KV.
#pragma once

#include <cachalot/result.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster/cluster_options.h"
#include "sim/cluster/workload.h"
#include "sim/engine/engine.h"
#include "simulate_output.h"
#include "timing_source.h"
#include "varying_flags.h"

namespace cachalot::apps {

// A cluster of one kind, all but routing and admission.
struct ClusterKind {
  std::string name;
  bool is_colocated = false;
  sim::ClusterOptions cluster;
  sim::EngineOptions engine;
  ClusterPrice price = {};
  std::uint64_t passes = 1;
};

// What the rows of one policy have in common.
struct PolicySetup {
  std::string name;  // with its flags
  sched::RoutingKind routing = sched::RoutingKind::kConductor;
  std::shared_ptr<const Timing> timing;
  std::vector<ClusterKind> kinds;
  unsigned uses = 0;  // a set of Use
};

// The policies of a table, and the other axes of its rows by their names.
class RowSimulator {
 public:
  // @errors kInvalidArgument: a name in --policy, --admission or --layerwise
  static Result<RowSimulator> make(const BoundFlags& flags);

  // @errors kInvalidArgument: a policy has a flag of its own that is an axis
  Status check_axes(std::span<const MapAxis> axes) const;

  // The setups of all policies, with these values of flags beside those of the command line.
  // @errors kInvalidArgument: a flag's value, or flags that contradict each other; kBadInput: a file of a timing model
  Result<std::vector<PolicySetup>> prepare(std::span<const FlagValue> values);

  // @param  cells  what prepare() returned for each cell; a table is one
  // @errors kInvalidArgument: a flag of the command line, an axis or a policy of something that no row has
  Status check_uses(std::span<const std::vector<PolicySetup>> cells,
                    std::span<const MapAxis> axes) const;

  // How many rows simulate() will return.
  std::size_t rows_of(std::span<const PolicySetup> setups) const;

  // All rows of one rate.
  // @param  workload     at that rate, with all passes in it
  // @param  on_progress  gets the row in work and the part of it that is done; may be empty
  // @errors as sim::simulate()
  using OnProgress = std::function<void(const SimulateRow& row, double part)>;
  Result<std::vector<SimulateRow>> simulate(std::span<const PolicySetup> setups,
                                            const sim::Workload& workload, double rate_scale,
                                            const OnProgress& on_progress) const;

 private:
  // Times that other setups can use, too.
  struct KnownTiming {
    TimingFlags flags;
    RecordedRunFlags recorded;
    std::uint64_t step_tokens = 0;
    std::shared_ptr<const Timing> timing;
  };

  explicit RowSimulator(const BoundFlags& flags)
      : flags_(flags), given_(given_flags(flags.command)) {}
  Result<std::shared_ptr<const Timing>> timing_for(const SimulateOptions& options);

  BoundFlags flags_;
  std::vector<FlagValue> given_;  // with() changes what the flags say
  std::vector<PolicyRow> policies_;
  std::vector<std::string> admissions_, layerwise_;
  std::vector<KnownTiming> known_;
};

}  // namespace cachalot::apps

#include "replay/pool/spread.h"

#include "base/rng.h"

namespace cachalot::replay {

std::vector<std::vector<std::size_t>> spread_requests(const ReplayOptions& options,
                                                      const Workload& workload) {
  const std::size_t hosts = options.host_count();
  std::vector<std::vector<std::size_t>> of_host(hosts);
  base::Rng random(options.seed);
  for (std::size_t request = 0; request < workload.requests(); ++request) {
    const std::span<const BlockHash> hashes = workload.hashes(request);
    std::size_t host = request % hosts;
    if (options.hosts.policy == HostPolicy::kRandom) host = random.below(hosts);
    if (options.hosts.policy == HostPolicy::kPrefix)
      host = hashes.empty() ? 0 : base::mix64(hashes.front().low) % hosts;
    of_host[host].push_back(request);
  }
  return of_host;
}

}  // namespace cachalot::replay

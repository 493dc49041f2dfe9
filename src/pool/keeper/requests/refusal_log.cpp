#include "pool/keeper/requests/refusal_log.h"

#include <string>

#include "base/log.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kPauseNs = 60'000'000'000;

struct Refusal {
  KeeperCounter counter;
  const char* what;
};
// Each begins with what is counted.
constexpr Refusal kRefusals[] = {
    {KeeperCounter::kNoSpaceCommits,
     "blocks: no room, and no other block can be evicted (pins, stores in flight)"},
    {KeeperCounter::kNoParentCommits, "blocks: the parent is not in the pool"},
    {KeeperCounter::kInvalidCommits, "blocks: their length or flags are not valid"},
    {KeeperCounter::kNotHeldCommits, "blocks: the client does not hold them"},
    {KeeperCounter::kNoSpaceGrants, "grants: no block is free, and none can be evicted"},
    {KeeperCounter::kOverLimitGrants, "grants: the client holds as many as it may"},
    {KeeperCounter::kNoSpaceNamespaces, "namespaces: the pool has all that it can have"}};

}  // namespace

void RefusalLog::tell(const KeeperCounters& now, std::uint64_t now_ns) {
  if (now_ns < next_ns_) return;
  std::string text;
  for (const Refusal& refusal : kRefusals) {
    const std::uint64_t count = now[refusal.counter] - told_[refusal.counter];
    if (count == 0) continue;
    text += (text.empty() ? "" : "; ") + std::to_string(count) + " " + refusal.what;
  }
  if (text.empty()) return;
  base::log(base::LogLevel::kWarn, "keeper", "refused since the last such line: %s", text.c_str());
  told_ = now;
  next_ns_ = now_ns + kPauseNs;
}

}  // namespace cachalot::pool

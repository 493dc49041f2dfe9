#include "serve_reread.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "hangup.h"

namespace cachalot::apps {
namespace {

// The names of these flags: "ttl, policy".
std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

bool is_live(const std::string& name) {
  constexpr std::array kLive = {"log-level", "log-format", "max-grants", "suspect-after"};
  return std::find(kLive.begin(), kLive.end(), name) != kLive.end();
}

void refuse(const char* problem) {
  base::log(base::LogLevel::kError, "serve", "SIGHUP: nothing is changed: %s", problem);
}

}  // namespace

void NewLimits::set(std::uint32_t max_grants, std::uint64_t suspect_after_ms) {
  const std::scoped_lock lock(mutex_);
  max_grants_ = max_grants;
  suspect_after_ms_ = suspect_after_ms;
  are_new_ = true;
}

void NewLimits::take(pool::Keeper& keeper) {
  const std::scoped_lock lock(mutex_);
  if (std::exchange(are_new_, false)) keeper.set_limits(max_grants_, suspect_after_ms_ * 1'000'000);
}

void ServeReread::operator()() {
  auto command = std::make_unique<LooseCommand>("serve");
  Result<std::unique_ptr<ServeFlags>> now = read_again(started_, *command);
  if (!now) return refuse(now.error().message);
  const Result<pool::KeeperOptions> checked = (*now)->keeper_options();
  if (!checked) return refuse(checked.error().message);
  apply(**now, command->command());
  last_ = *std::move(now);
  before_ = std::move(command);
}

void ServeReread::apply(const ServeFlags& now, const Command& command) {
  std::vector<std::string> applied =
      changed_flags(before_ ? before_->command() : *started_.command, command);
  std::vector<std::string> waiting = changed_flags(*started_.command, command);
  std::erase_if(applied, [](const std::string& name) { return !is_live(name); });
  std::erase_if(waiting, is_live);
  limits_.set(now.max_grants, now.suspect_after_ms);
  now.set_log();
  const std::string counts = applied.empty() ? "nothing" : list_of(applied);
  base::log(base::LogLevel::kWarn, "serve", "SIGHUP: changed now: %s%s%s", counts.c_str(),
            waiting.empty() ? "" : "; with the next start: ", list_of(waiting).c_str());
}

}  // namespace cachalot::apps

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

bool is_geometry_flag(const Command& command, const std::string& name) {
  const Flag* const flag = command.get_option_no_throw("--" + name);
  return flag != nullptr && flag->get_group() == kGeometryGroup;
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
  const Result<bool> has_other_geometry = differs_in_geometry(**now);
  if (!has_other_geometry) return refuse(has_other_geometry.error().message);
  apply(**now, command->command(), *has_other_geometry);
  last_ = *std::move(now);
  before_ = std::move(command);
}

// Of the same pool. "64KiB" and "65536" are one size.
Result<bool> ServeReread::differs_in_geometry(const ServeFlags& now) const {
  if (!now.create) return false;
  CACHALOT_TRY_ASSIGN(const pool::Geometry wanted, make_geometry(now.geometry, now.paths));
  if (!started_.create || now.paths != started_.paths) return false;
  CACHALOT_TRY_ASSIGN(const pool::Geometry made, make_geometry(started_.geometry, started_.paths));
  return !check_same_geometry(wanted, made, now.paths[0].c_str());
}

void ServeReread::apply(const ServeFlags& now, const Command& command, bool has_other_geometry) {
  std::vector<std::string> applied =
      changed_flags(before_ ? before_->command() : *started_.command, command);
  std::vector<std::string> waiting = changed_flags(*started_.command, command);
  std::erase_if(applied, [](const std::string& name) { return !is_live(name); });
  std::erase_if(waiting, is_live);
  std::vector<std::string> of_the_pool;
  for (const std::string& name : waiting)
    if (is_geometry_flag(command, name)) of_the_pool.push_back(name);
  if (now.paths == started_.paths)
    std::erase_if(waiting,
                  [&](const std::string& name) { return is_geometry_flag(command, name); });
  limits_.set(now.max_grants, now.suspect_after_ms);
  now.set_log();
  const std::string counts = applied.empty() ? "nothing" : list_of(applied);
  base::log(base::LogLevel::kWarn, "serve", "SIGHUP: changed now: %s%s%s%s%s%s", counts.c_str(),
            waiting.empty() ? "" : "; with the next start: ", list_of(waiting).c_str(),
            has_other_geometry ? "; " : "", has_other_geometry ? list_of(of_the_pool).c_str() : "",
            has_other_geometry ? ": the pool has to be made anew (stop the keeper, cachalot pool "
                                 "destroy); until then no keeper starts with this file"
                               : "");
}

}  // namespace cachalot::apps

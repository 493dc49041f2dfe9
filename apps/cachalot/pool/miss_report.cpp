#include "miss_report.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "pool_summary.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

std::uint64_t number_if_any(const Json& values, const char* name) {
  return values.value(name, std::uint64_t{0});
}

void add_cause(Json& causes, const char* cause, const std::string& detail) {
  if (!detail.empty() && detail != "none") causes.push_back({{"cause", cause}, {"detail", detail}});
}

std::string down_source(const Json& description) {
  const Json& storage = description["storage"];
  if (storage.is_null() || description["keeper"]["state"] == "none") return "";
  if (!storage["in_use"].get<bool>()) return "the storage is out of use";
  if (storage.contains("peers") && storage["peers"] == 0) return "no other host is connected";
  return "";
}

std::string other_namespaces(const Json& description) {
  if (!description.contains("namespaces")) return "";
  const Json& namespaces = description["namespaces"];
  for (const Json& one : namespaces) {
    if (!one.contains("differs_from")) continue;
    std::string parts;
    for (const Json& part : one["differs_from"]["in"])
      parts += (parts.empty() ? "" : ", ") + part.get<std::string>();
    return "namespaces " + one["id"].dump() + " and " + one["differs_from"]["id"].dump() +
           " share no block: they differ in " + parts;
  }
  // Of other models, only a namespace to which nothing was ever stored says something: that its engines may have meant one
  // of them.
  for (const Json& one : namespaces) {
    const auto is_of_its_model = [&](const Json& other) { return other["model"] == one["model"]; };
    const bool is_alone = std::count_if(namespaces.begin(), namespaces.end(), is_of_its_model) == 1;
    if (namespaces.size() == 1 || !is_alone || one["live_blocks"] != 0 ||
        one["committed_blocks"] != 0) {
      continue;
    }
    return "no other namespace is of the model of namespace " + one["id"].dump() + " (" +
           one["model"].get<std::string>() + "), to which nothing was stored";
  }
  return "";
}

}  // namespace

Json describe_misses(const Json& description) {
  const Json& totals = description["totals"];
  const std::uint64_t asked = number_if_any(totals, "prompt_blocks"),
                      used = number_if_any(totals, "used_blocks");
  const std::uint64_t missed = asked - std::min(asked, used);
  Json causes = Json::array();
  // The storage of a keeper may take a slot of its pool, and is no engine. An embedded keeper's process has engines, too.
  const Json& attached = description["attached"];
  const bool has_own_slot = !description["storage"].is_null() &&
                            std::any_of(attached.begin(), attached.end(), [&](const Json& one) {
                              return one["pid"] == description["keeper"]["pid"];
                            });
  const bool has_engines = attached.size() > (has_own_slot ? 1 : 0);
  if (number_if_any(totals, "prompts") == 0 && has_engines)
    add_cause(causes, "short_prompt",
              "no prompt has asked for a block: none came, or each was shorter than one");
  if (missed != 0) {
    add_cause(causes, "source_down", down_source(description));
    add_cause(causes, "other_namespace", other_namespaces(description));
  }
  if (missed != 0 && description.contains("counters")) {
    const Json& counters = description["counters"];
    add_cause(causes, "not_stored",
              counts_text(counters, {{"no_space_commits", "block", "found no room"},
                                     {"no_parent_commits", "", "came without their parent"},
                                     {"invalid_commits", "", "not valid"},
                                     {"no_space_grants", "request", "for blocks found no room"},
                                     {"no_space_namespaces", "namespace", "found no room"}}));
    add_cause(
        causes, "evicted",
        counts_text(counters, {{"capacity_evictions", "block", "evicted because the pool is full"},
                               {"expired_blocks", "", "expired (--ttl)"},
                               {"bucket_evictions", "", "evicted because the directory is full"},
                               {"requested_evictions", "", "evicted on request"}}));
  }
  if (missed != 0 && causes.empty())
    add_cause(causes, "never_stored",
              "nothing was evicted, refused or kept apart: prompts were new");
  return {{"missed_blocks", missed}, {"causes", causes}};
}

std::vector<std::pair<std::string, bool>> found_miss_causes(const Json& misses) {
  std::vector<std::pair<std::string, bool>> found;
  for (const char* const cause : {"source_down", "other_namespace", "not_stored", "evicted",
                                  "short_prompt", "never_stored"}) {
    const Json& causes = misses["causes"];
    found.emplace_back(cause, std::any_of(causes.begin(), causes.end(),
                                          [&](const Json& one) { return one["cause"] == cause; }));
  }
  return found;
}

}  // namespace cachalot::apps

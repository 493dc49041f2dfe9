#include "top_text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/words.h"
#include "pool_summary.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

constexpr const char* kSources[][2] = {{"used_pool_blocks", "pool"},
                                       {"used_peer_blocks", "peers"},
                                       {"used_storage_blocks", "storage"}};

// Two looks at one pool.
class Change {
 public:
  Change(const Json* before, const Json& now, double seconds)
      : before_(before), now_(now), seconds_(seconds) {}

  // How much a counter has grown.
  std::uint64_t growth(const char* section, const char* name) const {
    const std::uint64_t now = value(now_, section, name);
    if (before_ == nullptr) return 0;
    const std::uint64_t before = value(*before_, section, name);
    return now - std::min(now, before);  // a new keeper counts from 0
  }
  double rate(const char* section, const char* name) const {
    return static_cast<double>(growth(section, name)) / seconds_;
  }
  std::uint64_t total(const char* section, const char* name) const {
    return value(now_, section, name);
  }

 private:
  static std::uint64_t value(const Json& of, const char* section, const char* name) {
    return of.contains(section) ? of[section].value(name, std::uint64_t{0}) : 0;
  }

  const Json* before_;
  const Json& now_;
  double seconds_;
};

std::string share_text(std::uint64_t part, std::uint64_t all) {
  if (all == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%",
                100 * static_cast<double>(part) / static_cast<double>(all));
  return text;
}

std::string number_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, rate < 10 ? "%.1f" : "%.0f", rate);
  return text;
}

std::string bytes_rate(double rate) {
  return bytes_text(static_cast<std::uint64_t>(rate)) + "/s";
}

std::string row_text(const char* name, const std::string& text) {
  char begin[32];
  std::snprintf(begin, sizeof begin, "  %-10s ", name);
  return begin + base::printable(text) + "\n";
}

std::string clients_row(const Json& now) {
  std::uint64_t suspected = 0, held = 0;
  std::string pids;
  for (const Json& client : now["attached"]) {
    suspected += client["state"] == "suspected";
    held += client["state"] == "held";
    if (pids.size() < 60) pids += (pids.empty() ? "" : " ") + client["pid"].dump();
  }
  std::string text = std::to_string(now["attached"].size()) + " of " +
                     now["geometry"]["clients"].dump() + ", " + std::to_string(suspected) +
                     " suspected, " + std::to_string(held) + " held";
  return row_text("clients", pids.empty() ? text : text + "; pids " + pids);
}

// Blocks that prompts used, by those that they asked for, now and since the pool was made.
std::string hits_row(const Change& change) {
  const auto line = [&](auto&& of) {
    const std::uint64_t asked = of("prompt_blocks");
    std::uint64_t used = 0;
    std::string parts;
    for (const auto& [name, source] : kSources) {
      used += of(name);
      parts +=
          (parts.empty() ? "" : ", ") + std::string(source) + " " + share_text(of(name), asked);
    }
    return share_text(used, asked) + " (" + parts + ")";
  };
  return row_text("hit rate",
                  line([&](const char* name) { return change.growth("totals", name); }) +
                      "; ever " +
                      line([&](const char* name) { return change.total("totals", name); }));
}

std::string pool_lines(const std::string& path, const Json* before, const Json& now,
                       double seconds) {
  const Change change(before, now, seconds);
  const Json& geometry = now["geometry"];
  const Json& keeper = now["keeper"];
  const std::uint64_t capacity = geometry["capacity_blocks"].get<std::uint64_t>();
  const std::uint64_t live = change.total("accounting", "live_blocks");
  const std::uint64_t block_bytes = geometry["block_bytes"].get<std::uint64_t>();
  std::string text = base::printable(path) + "  keeper " + keeper_state_text(keeper);
  if (keeper["state"] == "none") {
    return text + ", " + share_text(live, capacity) + " of " + bytes_text(capacity * block_bytes) +
           " in use\n";
  }
  text += "\n" +
          row_text("in use", share_text(live, capacity) + " of " +
                                 bytes_text(capacity * block_bytes) + ": " + base::grouped(live) +
                                 " of " + base::counted(capacity, "block") + "; quarantined " +
                                 base::grouped(change.total("accounting", "quarantined_blocks")));
  text += clients_row(now) + hits_row(change);
  text +=
      row_text("traffic", "loads " + bytes_rate(change.rate("totals", "read_bytes")) + ", stores " +
                              bytes_rate(change.rate("totals", "written_bytes")) + ", prompts " +
                              number_text(change.rate("totals", "prompts")) + "/s, evictions " +
                              number_text(change.rate("counters", "evictions")) + "/s");
  if (!now["storage"].is_null()) {
    const Json& storage = now["storage"];
    text += row_text("storage", storage["kind"].get<std::string>() +
                                    (storage["in_use"].get<bool>() ? "" : ", out of use") + ", " +
                                    bytes_text(storage["stored_bytes"].get<std::uint64_t>()));
  }
  for (const Json& cause : now["misses"]["causes"])
    text += row_text("misses", cause["detail"].get<std::string>());
  return text;
}

}  // namespace

std::string top_text(const Snapshots& before, const Snapshots& now, double seconds) {
  if (now.empty()) return "no pool\n";
  std::string served, others;
  for (const auto& [path, description] : now) {
    if (!description.is_object()) {
      others += base::printable(path + "  " + description.get<std::string>()) + "\n";
      continue;
    }
    const Json* same = nullptr;
    for (const auto& [old_path, old] : before) {
      if (old_path == path && old.is_object() && old["uuid"] == description["uuid"]) same = &old;
    }
    const bool is_served = description["keeper"]["state"] != "none";
    (is_served ? served : others) += pool_lines(path, same, description, seconds);
    if (is_served) served += "\n";
  }
  return served + others;
}

}  // namespace cachalot::apps

#include "pool_summary.h"

#include <cinttypes>
#include <cstdint>
#include <string>

#include "base/words.h"
#include "namespace_report.h"
#include "pool_flags.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

std::uint64_t number_of(const Json& values, const char* name) {
  return values[name].get<std::uint64_t>();
}

std::string counted(const Json& values, const char* name, const char* noun) {
  return base::counted(number_of(values, name), noun);
}

std::string percent_text(double part, double all) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", all == 0 ? 0 : 100 * part / all);
  return text;
}

void print_field(std::FILE* out, const char* name, const std::string& text) {
  std::fprintf(out, "  %-12s %s\n", name, base::printable(text).c_str());
}

std::string pool_text(const Json& description) {
  const Json& paths = description["pool"];
  const std::string first = paths[0].get<std::string>();
  if (paths.size() == 1) return first;
  return first + " and " + std::to_string(paths.size() - 1) + " more";
}

std::string keeper_text(const Json& keeper) {
  std::string text = keeper_state_text(keeper);
  if (keeper["state"] == "none") return text + ", stores wait for the next one";
  if (keeper.contains("pid")) text += ", pid " + keeper["pid"].dump();
  text += ", epoch " + keeper["epoch"].dump();
  if (keeper.contains("policy")) text += ", policy " + keeper["policy"].get<std::string>();
  return text;
}

std::string clients_text(const Json& description) {
  std::uint64_t suspected = 0, held = 0;
  std::string first_held;
  for (const Json& client : description["attached"]) {
    suspected += client["state"] == "suspected";
    if (client["state"] == "held" && held++ == 0)
      first_held = "slot " + client["slot"].dump() + ", pid " + client["pid"].dump();
  }
  std::string text = std::to_string(description["attached"].size()) + " of " +
                     counted(description["geometry"], "clients", "slot");
  if (suspected != 0) text += ", " + std::to_string(suspected) + " suspected";
  if (held != 0) {
    text += ", " + std::to_string(held) + " held (" + first_held + (held == 1 ? ")" : ", …)");
  }
  return text;
}

// How many there are, and names of the first ones.
std::string namespaces_text(const Json& namespaces) {
  constexpr std::size_t kMostBytes = 100;
  std::string text = std::to_string(namespaces.size());
  for (std::size_t i = 0; i < namespaces.size(); ++i) {
    const std::string name = namespaces[i]["name"].get<std::string>();
    text += i == 0 ? ": " : ", ";
    if (text.size() + name.size() > kMostBytes) return text + name.substr(0, 40) + "…";
    text += name;
  }
  return text;
}

std::string storage_text(const Json& storage) {
  if (storage.is_null()) return "none";
  const std::string error = storage["last_error"].get<std::string>();
  std::string text = storage["kind"].get<std::string>() +
                     (storage["in_use"].get<bool>() ? ", in use: " : ", out of use: ") +
                     counted(storage, "objects", "block") + " of " +
                     bytes_text(number_of(storage, "stored_bytes")) + ", " +
                     base::grouped(number_of(storage, "queued_blocks")) + " to be written";
  if (number_of(storage, "outages") != 0) text += ", " + counted(storage, "outages", "outage");
  if (storage.contains("peers")) text += ", " + counted(storage, "peers", "peer") + " connected";
  return error.empty() ? text : text + "; last error: " + error;
}

std::string hits_text(const Json& totals) {
  if (totals["hit_rate"].is_null()) return "no prompt has asked for blocks yet";
  return percent_text(totals["hit_rate"].get<double>(), 1) + ": " +
         counted(totals, "prompts", "prompt") + " asked for " +
         counted(totals, "prompt_blocks", "block") + " and used " +
         base::grouped(number_of(totals, "used_blocks")) + " (" +
         counts_text(totals, {{"used_pool_blocks", "", "from the pool"},
                              {"used_peer_blocks", "", "from peers"},
                              {"used_storage_blocks", "", "from storage"}}) +
         ")";
}

}  // namespace

std::string counts_text(const Json& values, std::initializer_list<CountedPart> parts) {
  std::string text;
  for (const CountedPart& part : parts) {
    const std::uint64_t count = values.value(part.name, std::uint64_t{0});
    if (count == 0) continue;
    const bool has_noun = *part.noun != 0;
    text += (text.empty() ? "" : ", ") +
            (has_noun ? base::counted(count, part.noun) : base::grouped(count)) + " " + part.what;
  }
  return text.empty() ? "none" : text;
}

std::string keeper_state_text(const Json& keeper) {
  if (keeper["hangs"].get<bool>()) return "hangs";
  std::string text = keeper["state"].get<std::string>();
  if (keeper.contains("uptime_s"))
    text += " for " + duration_text(keeper["uptime_s"].get<double>());
  return text;
}

std::string duration_text(double s) {
  struct Unit {
    const char* name;
    std::uint64_t s;
  };
  constexpr Unit kUnits[] = {{"d", 86'400}, {"h", 3600}, {"min", 60}, {"s", 1}};
  const auto whole = static_cast<std::uint64_t>(s);
  for (std::size_t i = 0; i + 1 < std::size(kUnits); ++i) {
    if (whole < kUnits[i].s) continue;
    const std::uint64_t rest = whole % kUnits[i].s / kUnits[i + 1].s;
    return std::to_string(whole / kUnits[i].s) + " " + kUnits[i].name +
           (rest == 0 ? "" : " " + std::to_string(rest) + " " + kUnits[i + 1].name);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%g s", s);
  return text;
}

namespace {

std::string growth_text(const Json& geometry) {
  std::string text =
      "to " +
      bytes_text(number_of(geometry, "most_capacity_blocks") * number_of(geometry, "block_bytes")) +
      " of blocks";
  for (const Json& device : geometry["added_devices"]) {
    text += "; added " + base::printable(device["path"].get<std::string>()) + " (" +
            bytes_text(device["bytes"].get<std::uint64_t>()) + ")";
    if (device["leaving"].get<bool>()) text += ", which is being given up";
    if (device["state"] == "lost")
      text += ", lost: " + base::printable(device["why_lost"].get<std::string>());
  }
  return text;
}

}  // namespace

void print_summary(std::FILE* out, const Json& description) {
  const Json& geometry = description["geometry"];
  std::fprintf(out, "pool %s\n", base::printable(pool_text(description)).c_str());
  print_field(out, "keeper", keeper_text(description["keeper"]));
  print_field(out, "capacity",
              bytes_text(number_of(geometry, "capacity_bytes")) + ": " +
                  counted(geometry, "capacity_blocks", "block") + " of " +
                  bytes_text(number_of(geometry, "block_bytes")) + "; the pool takes " +
                  bytes_text(number_of(geometry, "total_bytes")) + " in all");
  if (geometry.contains("added_devices")) print_field(out, "may grow", growth_text(geometry));
  if (description.contains("accounting")) {
    const Json& blocks = description["accounting"];
    print_field(out, "blocks",
                percent_text(blocks["live_blocks"].get<double>(),
                             geometry["capacity_blocks"].get<double>()) +
                    " of the capacity in use: " +
                    counts_text(blocks, {{"live_blocks", "", "live"},
                                         {"granted_blocks", "", "granted"},
                                         {"free_blocks", "", "free"},
                                         {"limbo_blocks", "", "in limbo"},
                                         {"quarantined_blocks", "", "quarantined"},
                                         {"bad_blocks", "", "bad"},
                                         {"absent_blocks", "", "without memory"}}));
  }
  print_field(out, "clients", clients_text(description));
  if (description.contains("namespaces"))
    print_field(out, "namespaces", namespaces_text(description["namespaces"]));
  print_field(out, "storage", storage_text(description["storage"]));
  const Json& totals = description["totals"];
  print_field(out, "hit rate", hits_text(totals));
  print_field(
      out, "loaded",
      counted(totals, "read_blocks", "block") + ", " + bytes_text(number_of(totals, "read_bytes")) +
          "; not valid: " +
          counts_text(totals, {{"stale_reads", "", "stale"}, {"damaged_reads", "", "damaged"}}));
  print_field(out, "stored",
              counted(totals, "committed_blocks", "block") + ", " +
                  bytes_text(number_of(totals, "written_bytes")));
  if (description.contains("counters")) {
    const Json& counters = description["counters"];
    print_field(out, "evicted",
                counts_text(counters, {{"capacity_evictions", "", "for capacity"},
                                       {"bucket_evictions", "", "for the directory"},
                                       {"expired_blocks", "", "expired"},
                                       {"requested_evictions", "", "requested"}}));
    print_field(out, "refused",
                counts_text(counters, {{"no_space_commits", "block", "without room"},
                                       {"no_parent_commits", "", "without their parent"},
                                       {"invalid_commits", "", "not valid"},
                                       {"not_held_commits", "", "not held"},
                                       {"no_space_grants", "grant", "without room"},
                                       {"over_limit_grants", "", "over the limit"},
                                       {"no_space_namespaces", "namespace", "without room"}}));
  }
  for (const Json& one : description["misses"]["causes"])
    print_field(out, "misses", one["detail"].get<std::string>());
  if (description.contains("namespaces")) {
    for (const std::string& warning :
         fill_warnings(description["namespaces"], number_of(geometry, "block_bytes")))
      print_field(out, "warning", warning);
  }
  std::fprintf(out, "all figures: --all, or --json -\n");
}

}  // namespace cachalot::apps

#include "pool_report.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "base/words.h"
#include "miss_report.h"
#include "namespace_report.h"
#include "pool/expansion/expansion_device.h"
#include "pool/format/domains.h"
#include "pool/format/evidence.h"
#include "pool/sizing.h"
#include "pool_flags.h"
#include "pool_summary.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;
using pool::KeeperCounter;
using pool::Pool;

// lost: a process that opens the pool now does not find it.
Json describe_device(const pool::Expansion& device, bool is_leaving, const std::string& loss) {
  Json described = {{"path", device.path},
                    {"bytes", device.bytes},
                    {"leaving", is_leaving},
                    {"state", !loss.empty() ? "lost"
                              : is_leaving  ? "leaving"
                                            : "serving"}};
  if (!loss.empty()) described["why_lost"] = loss;
  return described;
}

// Of a growable pool: as it is now, and what it may become.
void describe_growth(const Pool& pool, Json& described) {
  const pool::Geometry& geometry = pool.access().geometry;
  Json devices = Json::array();
  const auto table = pool.state().read_expansions();
  std::uint64_t bytes = geometry.device_bytes;
  for (std::size_t i = 0; table && i < table->expansions.size(); ++i) {
    const pool::Expansion& device = table->expansions[i];
    const bool is_leaving = i + 1 == table->expansions.size() && table->leaving != pool::kNoBlock;
    const std::optional<Error> loss = pool::find_loss(pool.access(), device);
    devices.push_back(describe_device(device, is_leaving, loss ? loss->message : ""));
    bytes += pool::expansion_file_bytes(device.bytes);
  }
  for (std::size_t i = 0; table && i < table->lost.size(); ++i) {
    devices.push_back(describe_device(table->lost[i], false, "a keeper began without it"));
  }
  described["added_devices"] = devices;
  described["total_bytes"] = bytes;
  described["most_capacity_blocks"] = geometry.capacity_blocks;
}

Json describe_geometry(const Pool& pool) {
  const pool::Geometry& geometry = pool.access().geometry;
  const std::uint32_t capacity = pool.state().capacity_blocks();
  Json described = {{"domain", memory::domain_name(geometry.domain)},
                    {"devices", geometry.devices},
                    {"device_bytes", geometry.device_bytes},
                    {"block_bytes", geometry.block_bytes},
                    {"blocks", pool.state().blocks()},
                    {"capacity_blocks", capacity},
                    {"capacity_bytes", capacity * geometry.block_bytes},
                    {"directory_slots", geometry.directory_slots},
                    {"clients", geometry.engine_clients()},
                    {"hosts", geometry.hosts},
                    {"note_bytes", geometry.note_bytes},
                    {"total_bytes", pool::total_bytes(geometry)}};
  if (geometry.domain == memory::DomainKind::kMixed)
    described["domains"] = pool::domains_text(geometry);
  if (geometry.growable) describe_growth(pool, described);
  return described;
}

// serving: holds the lock and says that it answers; locked: holds it and does not say so; remote: says that
// it answers, from another machine; none: no keeper. A keeper that hangs still says "serving".
const char* keeper_state(const Pool& pool, const pool::KeeperView& view) {
  const bool says_it_serves = (view.flags & pool::kKeeperServing) != 0;
  if (pool.state().may_have_keeper()) return says_it_serves ? "serving" : "locked";
  return says_it_serves && pool.access().geometry.hosts > 1 ? "remote" : "none";
}

// A time in seconds; a whole number where it is one.
Json seconds(std::uint64_t ns) {
  constexpr std::uint64_t kNs = 1'000'000'000;
  if (ns % kNs == 0) return ns / kNs;
  return static_cast<double>(ns) / kNs;
}

// How the keeper serves, or the last one served. Keepers of earlier versions did not say it.
void describe_service(const Pool& pool, Json& keeper) {
  pool::KeeperInfoLine info{};
  if (!pool.state().read_keeper_info(info)) return;
  const auto text = [](const char* from, std::size_t most) {
    return std::string(from, strnlen(from, most));
  };
  keeper["version"] = text(info.version, sizeof info.version);
  keeper["policy"] = text(info.policy, sizeof info.policy);
  keeper["ttl_s"] = seconds(info.ttl_ns);
  keeper["pins"] = info.pins;
  keeper["priorities"] = info.priorities;
  keeper["since_unix_s"] = info.since_unix_s;
  if (keeper["state"] == "none") return;
  const auto now = static_cast<std::uint64_t>(std::time(nullptr));
  keeper["uptime_s"] = now - std::min(now, info.since_unix_s);
}

Json describe_keeper(const Pool& pool, bool hangs) {
  const pool::KeeperView view = pool.state().read_keepers();
  Json keeper = {{"state", keeper_state(pool, view)}, {"hangs", hangs}, {"epoch", view.epoch}};
  pool::KeeperLine line{};
  if (pool.state().read_keeper_line(line)) keeper["pid"] = line.pid;
  describe_service(pool, keeper);
  return keeper;
}

// Where the pool's blocks are: the parts add up to all blocks that the pool may have.
Json describe_accounting(const pool::KeeperCounters& counters) {
  Json accounting = Json::object();
  std::uint64_t sum = 0;
  for (const KeeperCounter part :
       {KeeperCounter::kFree, KeeperCounter::kGranted, KeeperCounter::kLive, KeeperCounter::kLimbo,
        KeeperCounter::kQuarantined, KeeperCounter::kBad, KeeperCounter::kAbsent}) {
    accounting[pool::counter_name(part)] = counters[part];
    sum += counters[part];
  }
  accounting["sum"] = sum;
  return accounting;
}

Json describe_counters(const pool::KeeperCounters& counters) {
  Json all = Json::object();
  for (auto i = static_cast<std::uint32_t>(KeeperCounter::kClients);
       i < pool::KeeperCounters::kCount; ++i) {
    const auto counter = static_cast<KeeperCounter>(i);
    if (counter == KeeperCounter::kAbsent) continue;  // of the accounting
    all[pool::counter_name(counter)] = counters[counter];
  }
  return all;
}

// served; unserved: it was, by a keeper that is gone; suspected: it is silent, and there is no proof
// that its process has ended; held: that, and blocks or the slot wait for the proof. Null: no client.
const char* client_state(const pool::ViewLine& view, bool is_served) {
  if ((view.flags & pool::kViewHeld) != 0) return "held";
  if ((view.flags & pool::kViewSuspected) != 0) return "suspected";
  if ((view.flags & pool::kViewOpen) != 0) return is_served ? "served" : "unserved";
  return nullptr;
}

Json describe_counters(const pool::ClientCounters& counters) {
  Json all = Json::object();
  for (std::uint32_t i = 0; i < pool::ClientCounters::kCount; ++i) {
    const auto counter = static_cast<pool::ClientCounter>(i);
    all[pool::counter_name(counter)] = counters[counter];
  }
  return all;
}

// Of all clients since the pool was made.
Json describe_totals(const pool::ClientCounters& counters) {
  Json all = describe_counters(counters);
  const std::uint64_t asked = counters[pool::ClientCounter::kPromptBlocks];
  const std::uint64_t used = counters[pool::ClientCounter::kUsedPoolBlocks] +
                             counters[pool::ClientCounter::kUsedPeerBlocks] +
                             counters[pool::ClientCounter::kUsedStorageBlocks];
  all["used_blocks"] = used;
  all["hit_rate"] = nullptr;
  if (asked != 0) all["hit_rate"] = static_cast<double>(used) / static_cast<double>(asked);
  return all;
}

Json describe_client_counters(const Pool& pool, std::uint32_t slot) {
  const pool::Access& access = pool.access();
  pool::ClientCounters counters;
  if (!counters.read(access.region, access.layout.client_counters(slot))) return {};
  return describe_counters(counters);
}

// Whether the client that the last keeper served has detached since, when no keeper was there to hear it,
// as the one that stopped it has. Its line says so: with the same reasons a next keeper will believe it.
bool has_left(const Pool& pool, const pool::ViewLine& view, std::uint32_t slot) {
  const pool::Access& access = pool.access();
  pool::ClientLine line{};
  return access.region.read_as(access.layout.client_line(slot), line) &&
         (line.flags & pool::kClientAttached) == 0 && line.drained >= view.incarnation &&
         pool::identity_of(line) == pool::identity_of(view);
}

// By what the keeper says: a client that was killed cannot take back what it said of itself.
Json describe_clients(const Pool& pool) {
  const pool::KeeperView keeper = pool.state().read_keepers();
  const bool is_served = std::strcmp(keeper_state(pool, keeper), "none") != 0;
  Json clients = Json::array();
  for (std::uint32_t slot = 0; slot < pool.access().geometry.clients; ++slot) {
    const pool::ViewLine view = pool.state().read_view(slot);
    const char* const state = client_state(view, is_served);
    if (state == nullptr) continue;
    if (!is_served && (view.flags & pool::kViewOpen) != 0 && has_left(pool, view, slot)) continue;
    Json client = {{"slot", slot},
                   {"host", view.host},
                   {"pid", view.pid},
                   {"held", (view.flags & pool::kViewHeld) != 0},
                   {"state", state}};
    const Json counters = describe_client_counters(pool, slot);
    if (!counters.is_null()) client["counters"] = counters;
    clients.push_back(std::move(client));
  }
  return clients;
}

// Of the ruling keeper; null: it has none.
Json describe_storage(const Pool& pool) {
  const std::optional<pool::StorageState> storage = pool.state().read_storage();
  if (!storage) return nullptr;
  const bool has_keeper = std::strcmp(keeper_state(pool, pool.state().read_keepers()), "none") != 0;
  Json described = {{"kind", storage->kind},
                    {"in_use", storage->is_up && has_keeper},
                    {"objects", storage->objects},
                    {"stored_bytes", storage->bytes},
                    {"queued_blocks", storage->queued_blocks},
                    {"outages", storage->outages},
                    {"last_error", storage->last_error}};
  if (storage->peers) described["peers"] = *storage->peers;
  return described;
}

std::string uuid_text(const pool::PoolId& id) {
  char text[40];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id.high, id.low);
  return text;
}

// The name's ending says what a number counts.
std::string value_text(std::string_view name, const Json& value) {
  if (name == "pid") return value.dump();  // a name, not a quantity
  if (name == "ttl_s" && value == 0) return "none";
  if (name == "hit_rate") {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f %%", 100 * value.get<double>());
    return text;
  }
  if (name.ends_with("_s") && value.is_number()) return duration_text(value.get<double>());
  if (name.ends_with("_bytes") && value.is_number_unsigned())
    return bytes_text(value.get<std::uint64_t>());
  if (value.is_number_unsigned()) return base::grouped(value.get<std::uint64_t>());
  return value.is_string() ? base::printable(value.get<std::string>()) : value.dump();
}

void print_section(std::FILE* out, const char* title, const Json& values) {
  std::fprintf(out, "%s\n", title);
  for (const auto& [name, value] : values.items()) {
    // A point in time is for programs: the table has how long ago it was.
    if (value.is_structured() || value.is_null() || name.ends_with("_unix_s")) continue;
    std::fprintf(out, "  %-18s %s\n", name.c_str(), value_text(name, value).c_str());
  }
}

}  // namespace

bool keeper_serves(const Pool& pool) {
  const std::string_view state = keeper_state(pool, pool.state().read_keepers());
  return state == "serving" || state == "remote";
}

Json describe_pool(const Pool& pool, bool keeper_hangs) {
  Json description = {{"pool", pool.paths()},
                      {"uuid", uuid_text(pool.access().id)},
                      {"format_version", pool::version_of(pool.access().geometry)},
                      {"created_unix_s", pool.created_unix_s()},
                      {"geometry", describe_geometry(pool)},
                      {"keeper", describe_keeper(pool, keeper_hangs)},
                      {"storage", describe_storage(pool)},
                      {"totals", describe_totals(pool.state().read_totals())},
                      {"attached", describe_clients(pool)}};
  Json namespaces = describe_namespaces(pool.state());
  if (!namespaces.empty()) description["namespaces"] = std::move(namespaces);
  pool::KeeperCounters counters;
  if (pool.state().read_keeper_counters(counters)) {
    description["accounting"] = describe_accounting(counters);
    description["counters"] = describe_counters(counters);
  }
  description["misses"] = describe_misses(description);
  return description;
}

void print_pool(std::FILE* out, const Json& description) {
  std::fprintf(out, "pool %s\n", description["uuid"].get<std::string>().c_str());
  for (const Json& path : description["pool"]) {
    std::fprintf(out, "  %s\n", base::printable(path.get<std::string>()).c_str());
  }
  print_section(out, "geometry", description["geometry"]);
  for (const Json& device : description["geometry"].value("added_devices", Json::array()))
    print_section(out, "added device", device);
  print_section(out, "keeper", description["keeper"]);
  if (!description["storage"].is_null()) print_section(out, "storage", description["storage"]);
  print_section(out, "all clients since the pool was created", description["totals"]);
  if (description.contains("namespaces")) {
    std::fprintf(out, "namespaces\n");
    for (const Json& one : description["namespaces"]) {
      const std::string name = one["name"].get<std::string>();
      std::fprintf(
          out, "  %-18u %s\n", one["id"].get<unsigned>(),
          name.empty() ? one["digest"].get<std::string>().c_str() : base::printable(name).c_str());
    }
  }
  if (description.contains("accounting")) {
    print_section(out, "blocks", description["accounting"]);
    print_section(out, "counters", description["counters"]);
  }
  for (const Json& client : description["attached"]) {
    print_section(out, "client", client);
    if (!client.contains("counters")) continue;
    for (const auto& [name, value] : client["counters"].items()) {
      std::fprintf(out, "  %-18s %s\n", name.c_str(), value_text(name, value).c_str());
    }
  }
}

}  // namespace cachalot::apps

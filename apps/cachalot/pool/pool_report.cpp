#include "pool_report.h"

#include <cinttypes>
#include <cstring>
#include <string>

#include "pool_flags.h"

namespace cachalot::apps {
namespace {

using nlohmann::json;
using pool::KeeperCounter;
using pool::Pool;

json describe_geometry(const pool::Geometry& geometry) {
  return {{"domain", memory::domain_name(geometry.domain)},
          {"devices", geometry.devices},
          {"device_bytes", geometry.device_bytes},
          {"block_bytes", geometry.block_bytes},
          {"blocks", geometry.blocks},
          {"capacity_blocks", geometry.capacity_blocks},
          {"directory_slots", geometry.directory_slots},
          {"clients", geometry.engine_clients()},
          {"hosts", geometry.hosts}};
}

// serving: holds the lock and says that it answers; locked: holds it and does not say so; remote: says that
// it answers, from another machine; none: nobody is there. One that hangs has said so: who asks it finds out.
const char* keeper_state(const Pool& pool, const pool::KeeperView& view) {
  const bool says_it_serves = (view.flags & pool::kKeeperServing) != 0;
  if (pool.keeper_is_locked()) return says_it_serves ? "serving" : "locked";
  return says_it_serves && pool.access().geometry.hosts > 1 ? "remote" : "none";
}

json describe_keeper(const Pool& pool) {
  const pool::KeeperView view = pool.keeper_view();
  json keeper = {{"state", keeper_state(pool, view)}, {"epoch", view.epoch}};
  pool::KeeperLine line{};
  if (pool.read_keeper_line(line)) keeper["pid"] = line.pid;
  return keeper;
}

// Where the pool's blocks are: the six parts add up to `blocks`.
json describe_accounting(const pool::KeeperCounters& counters) {
  json accounting = json::object();
  std::uint64_t sum = 0;
  for (const KeeperCounter part :
       {KeeperCounter::kFree, KeeperCounter::kGranted, KeeperCounter::kLive, KeeperCounter::kLimbo,
        KeeperCounter::kQuarantined, KeeperCounter::kBad}) {
    accounting[pool::counter_name(part)] = counters[part];
    sum += counters[part];
  }
  accounting["sum"] = sum;
  return accounting;
}

json describe_counters(const pool::KeeperCounters& counters) {
  json all = json::object();
  for (auto i = static_cast<std::uint32_t>(KeeperCounter::kClients);
       i < pool::KeeperCounters::kCount; ++i) {
    const auto counter = static_cast<KeeperCounter>(i);
    all[pool::counter_name(counter)] = counters[counter];
  }
  return all;
}

// What the ruling keeper says of a slot: held means that its last client is not served any more,
// and that nothing proves that it stores no more.
pool::ViewLine view_of(const Pool& pool, const pool::KeeperView& keeper, std::uint32_t slot) {
  const pool::Access& access = pool.access();
  pool::ViewLine line{};
  if (keeper.epoch == 0 ||
      !access.region.read_as(access.layout.view_line(keeper.keeper, slot), line) ||
      line.epoch != keeper.epoch) {
    return {};
  }
  return line;
}

// served; unserved: it was, by a keeper that is gone; suspected: it fell silent, and nobody proved
// that its process has ended; held: that, and blocks or the slot wait for the proof. Null: nobody.
const char* client_state(const pool::ViewLine& view, bool is_served) {
  if ((view.flags & pool::kViewHeld) != 0) return "held";
  if ((view.flags & pool::kViewSuspected) != 0) return "suspected";
  if ((view.flags & pool::kViewOpen) != 0) return is_served ? "served" : "unserved";
  return nullptr;
}

json describe_client_counters(const Pool& pool, std::uint32_t slot) {
  const pool::Access& access = pool.access();
  pool::ClientCounters counters;
  if (!counters.read(access.region, access.layout.client_counters(slot))) return {};
  json all = json::object();
  for (std::uint32_t i = 0; i < pool::ClientCounters::kCount; ++i) {
    const auto counter = static_cast<pool::ClientCounter>(i);
    all[pool::counter_name(counter)] = counters[counter];
  }
  return all;
}

// By what the keeper says: a client that was killed cannot take back what it said of itself.
json describe_clients(const Pool& pool) {
  const pool::KeeperView keeper = pool.keeper_view();
  const bool is_served = std::strcmp(keeper_state(pool, keeper), "none") != 0;
  json clients = json::array();
  for (std::uint32_t slot = 0; slot < pool.access().geometry.clients; ++slot) {
    const pool::ViewLine view = view_of(pool, keeper, slot);
    const char* const state = client_state(view, is_served);
    if (state == nullptr) continue;
    json client = {{"slot", slot},
                   {"host", view.host},
                   {"pid", view.pid},
                   {"held", (view.flags & pool::kViewHeld) != 0},
                   {"state", state}};
    const json counters = describe_client_counters(pool, slot);
    if (!counters.is_null()) client["counters"] = counters;
    clients.push_back(std::move(client));
  }
  return clients;
}

std::string uuid_text(const pool::PoolId& id) {
  char text[40];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id.high, id.low);
  return text;
}

std::string value_text(const json& value) {
  if (value.is_number_unsigned()) return grouped(value.get<std::uint64_t>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print_section(std::FILE* out, const char* title, const json& values) {
  std::fprintf(out, "%s\n", title);
  for (const auto& [name, value] : values.items()) {
    if (!value.is_structured()) {
      // A pid is a name, not a quantity.
      const std::string text = name == "pid" ? value.dump() : value_text(value);
      std::fprintf(out, "  %-18s %s\n", name.c_str(), text.c_str());
    }
  }
}

}  // namespace

json describe_pool(const Pool& pool) {
  json description = {{"pool", pool.paths()},
                      {"uuid", uuid_text(pool.access().id)},
                      {"format_version", pool::kFormatVersion},
                      {"created_unix_s", pool.created_unix_s()},
                      {"geometry", describe_geometry(pool.access().geometry)},
                      {"keeper", describe_keeper(pool)},
                      {"attached", describe_clients(pool)}};
  pool::KeeperCounters counters;
  if (pool.read_keeper_counters(counters)) {
    description["accounting"] = describe_accounting(counters);
    description["counters"] = describe_counters(counters);
  }
  return description;
}

void print_pool(std::FILE* out, const json& description) {
  std::fprintf(out, "pool %s\n", description["uuid"].get<std::string>().c_str());
  for (const json& path : description["pool"]) {
    std::fprintf(out, "  %s\n", path.get<std::string>().c_str());
  }
  print_section(out, "geometry", description["geometry"]);
  print_section(out, "keeper", description["keeper"]);
  if (description.contains("accounting")) {
    print_section(out, "blocks", description["accounting"]);
    print_section(out, "counters", description["counters"]);
  }
  for (const json& client : description["attached"]) {
    print_section(out, "client", client);
    if (!client.contains("counters")) continue;
    for (const auto& [name, value] : client["counters"].items()) {
      std::fprintf(out, "  %-18s %s\n", name.c_str(), value_text(value).c_str());
    }
  }
}

}  // namespace cachalot::apps

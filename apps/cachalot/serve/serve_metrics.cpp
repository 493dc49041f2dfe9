#include "serve_metrics.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "keeper_hangs.h"
#include "miss_report.h"
#include "output.h"
#include "pool_report.h"

namespace cachalot::apps {

void add_metrics_flag(Command& command, std::string& address) {
  command
      .add_option("--metrics", address,
                  "counters of the pool for Prometheus, over HTTP: GET /metrics, /livez, /readyz, "
                  "/status (as `pool info --json`), /version. "
                  ":PORT: all addresses; port 0: a free one, which the ready line names")
      ->type_name("HOST:PORT");
}

Result<Metrics> listen_for_metrics(std::string& address, const Paths& paths) {
  if (address.empty()) return Metrics();
  CACHALOT_TRY_ASSIGN(const node::ListenAddress parsed,
                      node::parse_listen_address("--metrics", address));
  Result<Metrics> server = node::MetricsServer::listen(parsed, paths[0]);
  if (!server) return Error::make(server.error().code, "--metrics: %s", server.error().message);
  address = (*server)->address().text();
  // The server calls one of these at a time. A scrape, too, sees whether the keeper works.
  const auto describe = [pulse = std::make_shared<pool::KeeperPulse>()](const pool::Pool& pool) {
    return describe_pool(pool, keeper_hangs(pool, *pulse));
  };
  (*server)->show_status([=](const pool::Pool& pool) { return json_line(describe(pool)); });
  (*server)->show_misses(
      [=](const pool::Pool& pool) { return found_miss_causes(describe(pool)["misses"]); });
  return server;
}

std::string metrics_field(const std::string& address) {
  return address.empty() ? std::string() : " metrics=" + address;
}

}  // namespace cachalot::apps

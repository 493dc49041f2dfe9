// The server over a real pool and real sockets; a real Prometheus scrapes it in tests/python/test_metrics.py.

#include "node/metrics/metrics_server.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <map>
#include <regex>
#include <sstream>

#include "testing/pool/test_pool.h"

namespace cachalot::node {
namespace {

constexpr const char* kOpenMetrics = "application/openmetrics-text;version=1.0.0";

class MetricsServerTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<pool::Pool> pool = pool::create_small_pool("memfd:metrics");
    ASSERT_TRUE(pool) << pool.error().message;
    pool_.emplace(*std::move(pool));
    Result<std::unique_ptr<MetricsServer>> server =
        MetricsServer::listen({"127.0.0.1", 0}, "/dev/shm/\"kv\"");
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  pool::PoolKeeper serve(pool::Succession succession = pool::Succession::kOfTheDead) {
    Result<pool::PoolKeeper> keeper = pool_->serve({}, succession);
    EXPECT_TRUE(keeper) << (keeper ? "" : keeper.error().message);
    return *std::move(keeper);
  }

  struct Answer {
    int status = 0;
    std::string type, body;
  };
  Answer get(const char* path, const char* accept = "*/*") const {
    httplib::Client client("127.0.0.1", server_->address().port);
    const httplib::Result result = client.Get(path, {{"Accept", accept}});
    EXPECT_TRUE(result) << path;
    if (!result) return {};
    return {result->status, result->get_header_value("Content-Type"), result->body};
  }
  std::map<std::string, std::string> samples() const {
    std::map<std::string, std::string> values;
    std::istringstream lines(get("/metrics").body);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t space = line.rfind(' ');
      if (line[0] != '#') values[line.substr(0, space)] = line.substr(space + 1);
    }
    return values;
  }
  static std::string name(const std::string& metric, const std::string& label = "") {
    return metric + R"({pool="/dev/shm/\"kv\"")" + (label.empty() ? "" : "," + label) + "}";
  }

  std::optional<pool::Pool> pool_;
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, IsHealthyOnlyWhileItsKeeperRules) {
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").body, "waiting\n");
  {
    pool::PoolKeeper keeper = serve();
    const MetricsServer::Shown shown(server_.get(), *pool_, keeper.keeper().epoch());
    EXPECT_EQ(get("/health").status, 200);
    EXPECT_EQ(get("/health").body, "ruling\n");
    pool::PoolKeeper successor = serve(pool::Succession::kOverTheLiving);
    EXPECT_EQ(get("/health").status, 503);
    EXPECT_EQ(get("/health").body, "deposed\n");
  }
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").body, "ended\n");
}

// A pool is counted once, by its ruling keeper.
TEST_F(MetricsServerTest, ExportsThePoolOnlyWhileItsKeeperRules) {
  const std::string ruling = name("cachalot_keeper_ruling"),
                    live = name("cachalot_pool_blocks", R"(state="live")");
  EXPECT_EQ(samples().at(ruling), "0");
  EXPECT_EQ(samples().count(live), 0u);
  pool::PoolKeeper keeper = serve();
  const MetricsServer::Shown shown(server_.get(), *pool_, keeper.keeper().epoch());
  EXPECT_EQ(samples().at(ruling), "1");
  EXPECT_EQ(samples().at(live), "0");
  EXPECT_EQ(samples().at(name("cachalot_keeper_epoch")), "1");
  EXPECT_EQ(samples().at(name("cachalot_pool_capacity_blocks")), "64");
  EXPECT_EQ(samples().at(name("cachalot_pool_client_slots")), "2");
  EXPECT_EQ(samples().at(name("cachalot_keeper_info", R"(policy="lru")")), "1");
  pool::PoolKeeper successor = serve(pool::Succession::kOverTheLiving);
  EXPECT_EQ(samples().at(ruling), "0");
  EXPECT_EQ(samples().count(live), 0u);
}

TEST_F(MetricsServerTest, AnswersInTheFormatThatTheScraperPrefers) {
  const Answer open_metrics = get("/metrics", kOpenMetrics);
  EXPECT_EQ(open_metrics.status, 200);
  EXPECT_EQ(open_metrics.type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_TRUE(open_metrics.body.ends_with("# EOF\n")) << open_metrics.body;
  const Answer text = get("/metrics", "text/plain");
  EXPECT_EQ(text.type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(text.body.find("# EOF"), std::string::npos);
}

// What the specification of OpenMetrics demands of each family.
TEST_F(MetricsServerTest, DescribesEachFamilyOnceAndEndsItsNameWithItsUnit) {
  pool::PoolKeeper keeper = serve();
  const MetricsServer::Shown shown(server_.get(), *pool_, keeper.keeper().epoch());
  std::istringstream lines(get("/metrics", kOpenMetrics).body);
  const std::regex comment("# (TYPE|UNIT|HELP) ([a-z_]+) (.+)");
  std::map<std::string, std::map<std::string, std::string>> families;
  std::string current;
  std::smatch match;
  for (std::string line; std::getline(lines, line) && line != "# EOF";) {
    if (!std::regex_match(line, match, comment)) {
      EXPECT_TRUE(line.starts_with(current)) << line;
      EXPECT_EQ(line.find("_total{") != std::string::npos, families[current]["TYPE"] == "counter");
      continue;
    }
    current = match[2];
    EXPECT_TRUE(families[current].emplace(match[1], match[3]).second) << line;
  }
  EXPECT_GT(families.size(), 30u);
  for (auto& [family, about] : families) {
    EXPECT_FALSE(about["HELP"].empty() || about["TYPE"].empty()) << family;
    EXPECT_TRUE(about["UNIT"].empty() || family.ends_with("_" + about["UNIT"])) << family;
    for (const char* unit : {"_bytes", "_blocks", "_seconds"})
      EXPECT_EQ(family.ends_with(unit), "_" + about["UNIT"] == unit) << family;
  }
}

TEST_F(MetricsServerTest, SaysWhatItHasToAnyOtherPath) {
  const Answer answer = get("/health/");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.body,
            "expected GET /, /metrics, /livez, /readyz, /health, /status or /version\n");
}

TEST_F(MetricsServerTest, IsReadyOnlyWhileItsKeeperRulesAndAliveAlsoWhileItWaits) {
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/livez").status, 200);
  EXPECT_EQ(get("/livez").body, "waiting\n");
  pool::PoolKeeper keeper = serve();
  const MetricsServer::Shown shown(server_.get(), *pool_, keeper.keeper().epoch());
  EXPECT_EQ(get("/readyz").status, 200);
  EXPECT_EQ(get("/readyz").body, "ruling\n");
  EXPECT_EQ(get("/livez").body, "ruling\n");
}

TEST_F(MetricsServerTest, DescribesThePoolOnlyWhileItsKeeperRules) {
  server_->show_status(
      [](const pool::Pool& pool) { return "{\"pool\":\"" + pool.paths()[0] + "\"}\n"; });
  EXPECT_EQ(get("/status").status, 503);
  EXPECT_EQ(get("/status").body, "{\"role\":\"waiting\"}\n");
  pool::PoolKeeper keeper = serve();
  const MetricsServer::Shown shown(server_.get(), *pool_, keeper.keeper().epoch());
  EXPECT_EQ(get("/status").status, 200);
  EXPECT_EQ(get("/status").type, "application/json");
  EXPECT_EQ(get("/status").body, "{\"pool\":\"" + pool_->paths()[0] + "\"}\n");
}

TEST_F(MetricsServerTest, NamesItsVersion) {
  EXPECT_EQ(get("/version").body, "{\"version\":\"" CACHALOT_VERSION "\",\"pool_format\":" +
                                      std::to_string(pool::kFormatVersion) + "}\n");
}

TEST_F(MetricsServerTest, RefusesAnAddressThatIsInUse) {
  const Result<std::unique_ptr<MetricsServer>> second =
      MetricsServer::listen(server_->address(), "x");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy) << second.error().message;
  EXPECT_EQ(std::string(second.error().message),
            server_->address().text() + ": listening: Address already in use");
}

TEST_F(MetricsServerTest, RefusesAnAddressThatIsNotOfThisMachine) {
  for (const ListenAddress& address :
       {ListenAddress{"192.0.2.1", 0}, {"no-such-host.invalid", 0}}) {
    const Result<std::unique_ptr<MetricsServer>> server = MetricsServer::listen(address, "x");
    ASSERT_FALSE(server) << address.host;
    EXPECT_NE(std::string(server.error().message).find(address.host), std::string::npos);
  }
}

TEST_F(MetricsServerTest, ListensAtAllAddresses) {
  Result<std::unique_ptr<MetricsServer>> all = MetricsServer::listen({"", 0}, "x");
  ASSERT_TRUE(all) << all.error().message;
  httplib::Client client("127.0.0.1", (*all)->address().port);
  const httplib::Result result = client.Get("/health");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 503);
}

}  // namespace
}  // namespace cachalot::node

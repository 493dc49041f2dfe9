#include "node/metrics/metrics_server.h"

#include <mutex>
#include <utility>

#include "base/clock.h"
#include "node/metrics/exposition.h"
#include "node/metrics/http_server.h"
#include "node/metrics/pool_metrics.h"
#include "node/metrics/status_page.h"
#include "pool/keeper_pulse.h"

namespace cachalot::node {
namespace {

constexpr const char* kPlainText = "text/plain; charset=utf-8";
constexpr const char* kJson = "application/json";
constexpr const char* kRules = "ruling";
// Longer than any work of the keeper's thread takes, and than a stall of the machine: the process is ended then.
constexpr std::uint64_t kPatienceNs = 30'000'000'000;

const std::string kVersionJson = "{\"version\":\"" CACHALOT_VERSION "\",\"pool_format\":" +
                                 std::to_string(pool::kFormatVersion) + "}\n";

}  // namespace

struct MetricsServer::Impl {
  std::string metrics(ExpositionFormat format);
  // kRules, or why not: "waiting", "deposed", "ended". Under the mutex.
  const char* role() const;
  HttpAnswer readiness();
  HttpAnswer liveness();
  HttpAnswer status();
  HttpAnswer answer(const HttpRequest& request);

  bool is_ruling() const {  // under the mutex
    if (pool == nullptr) return false;
    const pool::KeeperView view = pool->state().read_keepers();
    return view.epoch == epoch && (view.flags & pool::kKeeperServing) != 0;
  }

  std::string pool_name;
  ListenAddress address;
  std::mutex mutex;                  // of the next eight; held while an answer is made
  const pool::Pool* pool = nullptr;  // null: no keeper of this process rules one
  std::uint32_t epoch = 0;
  bool has_ruled = false;
  std::function<StorageFigures()> read_storage;
  std::function<PeerFigures()> read_peers;
  std::function<std::string(const pool::Pool&)> describe;
  std::function<MissCauses(const pool::Pool&)> find_misses;
  pool::KeeperPulse pulse;
  std::unique_ptr<HttpServer> server;  // last: its thread uses the others
};

std::string MetricsServer::Impl::metrics(ExpositionFormat format) {
  Exposition exposition(format, pool_name);
  const std::scoped_lock lock(mutex);
  const bool rules = is_ruling();
  write_process_metrics(exposition, rules);
  if (rules) write_pool_metrics(exposition, *pool);
  if (rules && find_misses) write_miss_metrics(exposition, find_misses(*pool));
  if (rules && read_storage) write_storage_metrics(exposition, read_storage());
  if (rules && read_peers) write_peer_metrics(exposition, read_peers());
  return exposition.finish();
}

const char* MetricsServer::Impl::role() const {
  if (is_ruling()) return kRules;
  if (pool != nullptr) return "deposed";
  return has_ruled ? "ended" : "waiting";
}

HttpAnswer MetricsServer::Impl::readiness() {
  const std::scoped_lock lock(mutex);
  const std::string found = role();
  return {found == kRules ? 200 : 503, kPlainText, found + "\n"};
}

HttpAnswer MetricsServer::Impl::liveness() {
  const std::scoped_lock lock(mutex);
  const std::string found = role();
  if (found == kRules && pulse.silent_ns(pool->state(), base::SteadyClock::read()) >= kPatienceNs) {
    return {503, kPlainText, "hangs\n"};
  }
  return {200, kPlainText, found + "\n"};
}

HttpAnswer MetricsServer::Impl::status() {
  const std::scoped_lock lock(mutex);
  const std::string found = role();
  if (found != kRules || !describe) return {503, kJson, "{\"role\":\"" + found + "\"}\n"};
  return {200, kJson, describe(*pool)};
}

HttpAnswer MetricsServer::Impl::answer(const HttpRequest& request) {
  if (request.path == "/metrics") {
    const ExpositionFormat format = negotiate_format(request.accept);
    return {200, content_type(format), metrics(format)};
  }
  if (request.path == "/readyz" || request.path == "/health") return readiness();
  if (request.path == "/livez") return liveness();
  if (request.path == "/status") return status();
  if (request.path == "/") return {200, "text/html; charset=utf-8", kStatusPage};
  if (request.path == "/version") return {200, kJson, kVersionJson};
  return {404, kPlainText,
          "expected GET /, /metrics, /livez, /readyz, /health, /status or /version\n"};
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen(const ListenAddress& address,
                                                             std::string pool_name) {
  auto impl = std::make_unique<Impl>();
  impl->pool_name = std::move(pool_name);
  impl->address = address;
  Impl* const shared = impl.get();
  CACHALOT_TRY_ASSIGN(impl->server,
                      HttpServer::listen(address, [shared](const HttpRequest& request) {
                        return shared->answer(request);
                      }));
  impl->address.port = impl->server->port();
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

void MetricsServer::show_storage(std::function<StorageFigures()> read) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->read_storage = std::move(read);
}

void MetricsServer::show_peers(std::function<PeerFigures()> read) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->read_peers = std::move(read);
}

void MetricsServer::show_status(std::function<std::string(const pool::Pool&)> describe) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->describe = std::move(describe);
}

void MetricsServer::show_misses(std::function<MissCauses(const pool::Pool&)> find) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->find_misses = std::move(find);
}

const ListenAddress& MetricsServer::address() const {
  return impl_->address;
}

MetricsServer::Shown::Shown(MetricsServer* server, const pool::Pool& pool, std::uint32_t epoch)
    : server_(server) {
  if (server_ == nullptr) return;
  Impl& impl = *server_->impl_;
  const std::scoped_lock lock(impl.mutex);
  impl.pool = &pool;
  impl.epoch = epoch;
  impl.pulse = {};
}

MetricsServer::Shown::~Shown() {
  if (server_ == nullptr) return;
  Impl& impl = *server_->impl_;
  const std::scoped_lock lock(impl.mutex);
  impl.pool = nullptr;
  impl.has_ruled = true;
}

}  // namespace cachalot::node

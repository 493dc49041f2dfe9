#include "node/metrics/metrics_server.h"

#include <mutex>
#include <utility>

#include "node/metrics/exposition.h"
#include "node/metrics/http_server.h"
#include "node/metrics/pool_metrics.h"

namespace cachalot::node {
namespace {

constexpr const char* kPlainText = "text/plain; charset=utf-8";

}  // namespace

struct MetricsServer::Impl {
  std::string metrics(ExpositionFormat format);
  // "ruling", or why not: "waiting", "deposed", "ended".
  const char* role();
  HttpAnswer answer(const HttpRequest& request);

  bool is_ruling() const {  // under the mutex
    if (pool == nullptr) return false;
    const pool::KeeperView view = pool->state().read_keepers();
    return view.epoch == epoch && (view.flags & pool::kKeeperServing) != 0;
  }

  std::string pool_name;
  ListenAddress address;
  std::mutex mutex;                  // of the next five; held during a scrape
  const pool::Pool* pool = nullptr;  // null: no keeper of this process rules one
  std::uint32_t epoch = 0;
  bool has_ruled = false;
  std::function<StorageFigures()> read_storage;
  std::function<PeerFigures()> read_peers;
  std::unique_ptr<HttpServer> server;  // last: its thread uses the others
};

std::string MetricsServer::Impl::metrics(ExpositionFormat format) {
  Exposition exposition(format, pool_name);
  const std::scoped_lock lock(mutex);
  const bool rules = is_ruling();
  write_process_metrics(exposition, rules);
  if (rules) write_pool_metrics(exposition, *pool);
  if (rules && read_storage) write_storage_metrics(exposition, read_storage());
  if (rules && read_peers) write_peer_metrics(exposition, read_peers());
  return exposition.finish();
}

const char* MetricsServer::Impl::role() {
  const std::scoped_lock lock(mutex);
  if (is_ruling()) return "ruling";
  if (pool != nullptr) return "deposed";
  return has_ruled ? "ended" : "waiting";
}

HttpAnswer MetricsServer::Impl::answer(const HttpRequest& request) {
  if (request.path == "/metrics") {
    const ExpositionFormat format = negotiate_format(request.accept);
    return {200, content_type(format), metrics(format)};
  }
  if (request.path == "/health") {
    const std::string found = role();
    return {found == "ruling" ? 200 : 503, kPlainText, found + "\n"};
  }
  return {404, kPlainText, "expected GET /metrics or GET /health\n"};
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
}

MetricsServer::Shown::~Shown() {
  if (server_ == nullptr) return;
  Impl& impl = *server_->impl_;
  const std::scoped_lock lock(impl.mutex);
  impl.pool = nullptr;
  impl.has_ruled = true;
}

}  // namespace cachalot::node

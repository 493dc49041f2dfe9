#include "node/metrics/metrics_server.h"

#include <httplib.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "node/metrics/exposition.h"
#include "node/metrics/pool_metrics.h"

namespace cachalot::node {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kMostConnections = 16;
constexpr std::time_t kPatienceS =
    2;  // with a client that neither sends nor takes, also at the end
constexpr std::size_t kMostBodyBytes = 4096;

// The library's threads, with a limit of open connections: beyond it the kernel's queue fills up, so that no
// client can take all file descriptors of the keeper's process.
class ConnectionQueue final : public httplib::TaskQueue {
 public:
  // Nothing, or in later versions of the library bool.
  using Queued = decltype(std::declval<httplib::ThreadPool&>().enqueue(std::function<void()>()));

  Queued enqueue(std::function<void()> serve) override {
    {
      std::unique_lock lock(mutex_);
      has_ended_.wait(lock, [this] { return connections_ < kMostConnections; });
      ++connections_;
    }
    return threads_.enqueue([this, serve = std::move(serve)] {
      serve();
      const std::scoped_lock lock(mutex_);
      --connections_;
      has_ended_.notify_one();
    });
  }
  void shutdown() override { threads_.shutdown(); }

 private:
  std::mutex mutex_;
  std::condition_variable has_ended_;
  std::size_t connections_ = 0;
  httplib::ThreadPool threads_{kThreads};
};

// A thread started while this exists gets no signal: those are for the keeper, whose nap they end.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

struct MetricsServer::Impl {
  std::string metrics(ExpositionFormat format);
  // "ruling", or why not: "waiting", "deposed", "ended".
  const char* role();
  void add_routes();
  // @return 0: it cannot be listened at; errno says why, or is 0
  int bind(const std::string& host, std::uint16_t port);

  bool is_ruling() const {  // under the mutex
    if (pool == nullptr) return false;
    const pool::KeeperView view = pool->state().read_keepers();
    return view.epoch == epoch && (view.flags & pool::kKeeperServing) != 0;
  }

  std::string pool_name;
  ListenAddress address;
  std::mutex mutex;                  // of the next four; held during a scrape
  const pool::Pool* pool = nullptr;  // null: no keeper of this process rules one
  std::uint32_t epoch = 0;
  bool has_ruled = false;
  std::function<StorageFigures()> read_storage;
  httplib::Server server;
  std::thread thread;
};

std::string MetricsServer::Impl::metrics(ExpositionFormat format) {
  Exposition exposition(format, pool_name);
  const std::scoped_lock lock(mutex);
  const bool rules = is_ruling();
  write_process_metrics(exposition, rules);
  if (rules) write_pool_metrics(exposition, *pool);
  if (rules && read_storage) write_storage_metrics(exposition, read_storage());
  return exposition.finish();
}

const char* MetricsServer::Impl::role() {
  const std::scoped_lock lock(mutex);
  if (is_ruling()) return "ruling";
  if (pool != nullptr) return "deposed";
  return has_ruled ? "ended" : "waiting";
}

void MetricsServer::Impl::add_routes() {
  server.Get("/metrics", [this](const httplib::Request& request, httplib::Response& response) {
    std::string accept;
    for (std::size_t i = 0; i < request.get_header_value_count("Accept"); ++i)
      accept += request.get_header_value("Accept", i) + ",";
    const ExpositionFormat format = negotiate_format(accept);
    response.set_content(metrics(format), content_type(format));
  });
  server.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
    const std::string found = role();
    response.status = found == "ruling" ? 200 : 503;
    response.set_content(found + "\n", "text/plain; charset=utf-8");
  });
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    response.set_content(response.status == 404 ? "expected GET /metrics or GET /health\n"
                                                : "the request cannot be served\n",
                         "text/plain; charset=utf-8");
  });
}

int MetricsServer::Impl::bind(const std::string& host, std::uint16_t port) {
  errno = 0;
  if (port == 0) return std::max(server.bind_to_any_port(host), 0);
  return server.bind_to_port(host, port) ? port : 0;
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen(const ListenAddress& address,
                                                             std::string pool_name) {
  auto impl = std::make_unique<Impl>();
  httplib::Server& server = impl->server;
  impl->pool_name = std::move(pool_name);
  impl->address = address;
  server.new_task_queue = [] { return new ConnectionQueue; };
  // The library's own choice lets two servers share a port without knowing.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_tcp_nodelay(true);
  server.set_keep_alive_max_count(1);  // an idle connection would keep a thread
  server.set_keep_alive_timeout(kPatienceS);
  server.set_read_timeout(kPatienceS);
  server.set_write_timeout(kPatienceS);
  server.set_payload_max_length(kMostBodyBytes);
  impl->add_routes();
  // All addresses: IPv6 and IPv4 by one socket, or IPv4 where the machine has no IPv6.
  int port = impl->bind(address.host.empty() ? "::" : address.host, address.port);
  if (port == 0 && address.host.empty() && errno != EADDRINUSE)
    port = impl->bind("0.0.0.0", address.port);
  if (port == 0) {
    const std::string text = address.text();
    return errno == 0 ? Error::make(Code::kInvalidArgument, "%.100s: no such host", text.c_str())
                      : Error::from_errno(errno, "%.100s: listening", text.c_str());
  }
  impl->address.port = static_cast<std::uint16_t>(port);
  const SignalsBlocked blocked;
  impl->thread = std::thread([&server] { server.listen_after_bind(); });
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsServer::~MetricsServer() {
  // A server that does not run yet does not notice that it is stopped.
  while (!impl_->server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  impl_->server.stop();
  impl_->thread.join();
}

void MetricsServer::show_storage(std::function<StorageFigures()> read) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->read_storage = std::move(read);
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

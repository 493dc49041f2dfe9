// The pool's counters over HTTP, for Prometheus: `cachalot serve --metrics`.
//
//   GET /metrics  200: OpenMetrics, or Prometheus text if the request prefers it
//   GET /readyz   200: this process's keeper rules; 503: it waits, has ended, or another keeper rules
//   GET /health   the same
//   GET /livez    200; 503: the keeper rules, and its thread hangs
//   GET /status   200: the pool as JSON, as show_status() has it; 503: what /readyz says
//   GET /         200: a page that shows /status
//   GET /version  200: {"version", "pool_format"}
//
// A thread of its own answers, from what keeper and clients publish in the pool: the keeper's thread neither
// answers nor is asked. A process whose keeper does not rule exports its role only, so that the pool of a
// keeper and its standby is counted once.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "node/metrics/listen_address.h"
#include "node/metrics/miss_metrics.h"
#include "node/metrics/storage_metrics.h"
#include "pool/pool.h"

namespace cachalot::node {

class MetricsServer {
 public:
  // Listens, and answers from now on. `pool_name` is the label of all metrics.
  // @errors kBusy, kPermission, kIo: the address cannot be listened at; kInvalidArgument: there is no such host
  static Result<std::unique_ptr<MetricsServer>> listen(const ListenAddress& address,
                                                       std::string pool_name);
  // Waits for an answer that is being made.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Also shows the storage behind the pool from now on, while the keeper rules; an empty function: no more.
  // `read` is called by the server's thread. The call waits for a scrape in flight.
  void show_storage(std::function<StorageFigures()> read);

  // The same for the pools of other hosts.
  void show_peers(std::function<PeerFigures()> read);

  // What /status answers of a pool, as JSON. The server's thread calls it; the call waits for an answer that is being
  // made.
  void show_status(std::function<std::string(const pool::Pool&)> describe);

  // What the metrics say of misses; called like show_status()'s.
  void show_misses(std::function<MissCauses(const pool::Pool&)> find);

  // Where it listens; the port is the one that was found for port 0.
  const ListenAddress& address() const;

  // While this exists, the server shows a pool that the keeper of this process rules.
  // @threads made and destroyed by one thread; its end waits for a scrape in flight
  class Shown {
   public:
    Shown(MetricsServer* server, const pool::Pool& pool, std::uint32_t epoch);
    ~Shown();
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    MetricsServer* server_;  // null: there is none to tell
  };

 private:
  struct Impl;
  explicit MetricsServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::node

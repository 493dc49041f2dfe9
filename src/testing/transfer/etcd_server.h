// A real etcd for tests: one process, with its data in memory because a busy disk delays it by seconds.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "testing/storage/server.h"

namespace cachalot::transfer {

class EtcdServer {
 public:
  // Version 3.4 or later, which has the paths that the registry uses.
  static bool is_installed() {
    constexpr const char* kCheck =
        "etcd --version 2>/dev/null | grep -qE '^etcd Version: (3\\.([4-9]|[1-9][0-9])|[4-9])\\.'";
    static const bool is = std::system(kCheck) == 0;
    return is;
  }

  // @param tls  flags of etcd that say its certificates; none: it speaks HTTP
  static Result<std::unique_ptr<EtcdServer>> start(const std::vector<std::string>& tls = {}) {
    char name[] = "/dev/shm/cachalot_etcd.XXXXXX";
    if (mkdtemp(name) == nullptr) return Error::make(Code::kIo, "%s: mkdtemp", name);
    std::unique_ptr<EtcdServer> etcd(new EtcdServer(name));
    const std::string client =
        (tls.empty() ? "http" : "https") + std::string("://127.0.0.1:{port}");
    const std::string peer = "http://127.0.0.1:{peer_port}";
    std::vector<std::string> command = {"etcd",
                                        "--data-dir",
                                        "data",
                                        "--listen-client-urls",
                                        client,
                                        "--advertise-client-urls",
                                        client,
                                        "--listen-peer-urls",
                                        peer,
                                        "--initial-advertise-peer-urls",
                                        peer,
                                        "--initial-cluster",
                                        "default=" + peer};
    command.insert(command.end(), tls.begin(), tls.end());
    CACHALOT_TRY_ASSIGN(storage::TestServer server,
                        storage::TestServer::start(command, etcd->folder_));
    etcd->server_ = std::make_unique<storage::TestServer>(std::move(server));
    return etcd;
  }
  ~EtcdServer() {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  void kill() { server_->kill(); }  // kill -9
  Status restart() { return server_->restart(); }
  Status restart_without_data() {
    server_->kill();
    std::filesystem::remove_all(folder_ + "/data");
    return server_->restart();
  }
  void stop() { server_->stop(); }  // SIGSTOP
  void resume() { server_->resume(); }

 private:
  explicit EtcdServer(std::string folder) : folder_(std::move(folder)) {}

  std::string folder_;
  std::unique_ptr<storage::TestServer> server_;
};

}  // namespace cachalot::transfer

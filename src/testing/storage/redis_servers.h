// Redis servers for tests: one, or a cluster of three.
#pragma once

#include <memory>

#include "testing/storage/server.h"

namespace cachalot::storage {

inline std::vector<std::string> redis_arguments(std::uint16_t port, const std::string& folder) {
  return {"redis-server",
          "--port",
          std::to_string(port),
          "--bind",
          "127.0.0.1",
          "--save",
          "",
          "--appendonly",
          "no",
          "--dir",
          folder,
          "--unixsocket",
          folder + "/redis.sock"};
}

inline Result<TestServer> start_redis(const std::string& folder,
                                      std::vector<std::string> more = {}) {
  const std::uint16_t port = free_port();
  std::vector<std::string> arguments = redis_arguments(port, folder);
  arguments.insert(arguments.end(), more.begin(), more.end());
  return TestServer::start(arguments, port, folder);
}

}  // namespace cachalot::storage

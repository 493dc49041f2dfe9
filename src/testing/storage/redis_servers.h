// Redis servers for tests: one, or a cluster of three.
#pragma once

#include <memory>

#include "testing/storage/server.h"

namespace cachalot::storage {

inline Result<TestServer> start_redis(const std::string& folder,
                                      const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"redis-server",
                                        "--port",
                                        "{port}",
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
  arguments.insert(arguments.end(), more.begin(), more.end());
  return TestServer::start(arguments, folder);
}

}  // namespace cachalot::storage

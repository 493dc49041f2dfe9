// Real servers for tests, each a process in a folder of its own. They end with the test.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "os/child.h"

namespace cachalot::storage {

// A port of 127.0.0.1 that nothing listens on now.
std::uint16_t free_port();

// Where a program is, or "".
std::string find_program(const std::string& name);

class TestServer {
 public:
  // Starts the program and waits until it accepts connections at `port`.
  // @param arguments  the first is the program, found in PATH
  static Result<TestServer> start(std::vector<std::string> arguments, std::uint16_t port,
                                  const std::string& folder);

  std::uint16_t port() const { return port_; }
  void kill();  // kill -9
  Status restart();
  // SIGSTOP. Returns when it stands still: until then its threads may still answer.
  void stop();
  void resume() { child_.send(18); }  // SIGCONT

 private:
  TestServer(std::vector<std::string> arguments, std::uint16_t port, std::string folder,
             os::Child child)
      : arguments_(std::move(arguments)),
        port_(port),
        folder_(std::move(folder)),
        child_(std::move(child)) {}

  std::vector<std::string> arguments_;
  std::uint16_t port_;
  std::string folder_;
  os::Child child_;
};

}  // namespace cachalot::storage

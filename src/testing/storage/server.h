// Real servers for tests, each a process in a folder of its own. They end with the test.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "os/child.h"

namespace cachalot::storage {

// A port that nothing has now. No outgoing connection takes it, and no other call of any test's process gets it until
// this process ends.
std::uint16_t free_port();

// Where a program is, or "".
std::string find_program(const std::string& name);

class TestServer {
 public:
  struct Ports {
    std::uint16_t own, peer;
  };

  // Starts the program and waits until it listens at its own port; again with other ports when another process took one.
  // @param arguments  the first is the program, found in PATH; {port} and {peer_port} in them become free ports
  // @errors kNotFound, kIo, kTimeout: with the end of what the program said, which is in server.log
  static Result<TestServer> start(const std::vector<std::string>& arguments,
                                  const std::string& folder);

  std::uint16_t port() const { return ports_.own; }
  std::uint16_t peer_port() const { return ports_.peer; }
  void kill();  // kill -9
  Status restart();
  // SIGSTOP. Returns when it stands still: until then its threads may still answer.
  void stop();
  void resume() { child_.send(18); }  // SIGCONT

 private:
  TestServer(std::vector<std::string> arguments, Ports ports, std::string folder, os::Child child)
      : arguments_(std::move(arguments)),
        ports_(ports),
        folder_(std::move(folder)),
        child_(std::move(child)) {}
  Status wait_until_up();

  std::vector<std::string> arguments_;
  Ports ports_;
  std::string folder_;
  os::Child child_;
};

}  // namespace cachalot::storage

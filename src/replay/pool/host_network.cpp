#include "replay/pool/host_network.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "os/child.h"

namespace cachalot::replay {
namespace {

constexpr std::uint64_t kNetworkPatienceNs = 30'000'000'000;

using Command = std::vector<std::string>;

// Runs a program of iproute2 in this thread's namespace.
Status run_command(Command command) {
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        std::vector<char*> arguments;
                        for (std::string& word : command) arguments.push_back(word.data());
                        arguments.push_back(nullptr);
                        const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
                        (void)dup2(nowhere, STDERR_FILENO);
                        execvp(arguments[0], arguments.data());
                        return 127;
                      }));
  CACHALOT_TRY_ASSIGN(const os::ChildStatus ended, child.wait());
  if (ended.ok()) return {};
  std::string line;
  for (const std::string& word : command) line += (line.empty() ? "" : " ") + word;
  return Error::make(Code::kIo, "network: `%.150s`: %s, expected iproute2 and the rights of root",
                     line.c_str(), ended.text().c_str());
}

Status run_all(const std::vector<Command>& commands) {
  for (const Command& command : commands) CACHALOT_TRY(run_command(command));
  return {};
}

Status wait_until(const std::function<bool()>& is_true, std::uint32_t host) {
  const std::uint64_t until_ns = base::SteadyClock::read() + kNetworkPatienceNs;
  while (!is_true()) {
    if (base::SteadyClock::read() >= until_ns)
      return Error::make(Code::kTimeout, "network: host %u has no link yet", host);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

// Makes a device usable. What it sends goes at most at the link's bandwidth.
Status bring_up(const std::string& device, std::uint32_t host, std::uint64_t bytes_per_s) {
  CACHALOT_TRY(run_all({{"ip", "address", "add", network_address(host) + "/24", "dev", device},
                        {"ip", "link", "set", "dev", device, "up"}}));
  if (bytes_per_s == 0) return {};
  constexpr std::uint64_t kLeastBurst = 256u << 10, kTurnsOfSecond = 100;
  const std::uint64_t burst = std::max(kLeastBurst, bytes_per_s / kTurnsOfSecond);
  return run_command({"tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                      std::to_string(bytes_per_s) + "bps", "burst", std::to_string(burst) + "b",
                      "latency", "50ms"});
}

// By host 0, which has the bridge.
Status link_to(std::uint32_t host, HostState& state) {
  CACHALOT_TRY(wait_until([&] { return state.network_pid.load() != 0; }, host));
  const std::string port = "port" + std::to_string(host);
  CACHALOT_TRY(run_all({{"ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0",
                         "netns", std::to_string(state.network_pid.load())},
                        {"ip", "link", "set", "dev", port, "master", "hub"},
                        {"ip", "link", "set", "dev", port, "up"}}));
  state.has_link.store(true);
  return {};
}

}  // namespace

std::string network_address(std::uint32_t host) {
  return "10.77.0." + std::to_string(host + 1);
}

Status enter_network(const ReplayOptions& options, std::uint32_t host, HarnessState& harness) {
  HostState& state = harness.hosts[host];
  if (unshare(CLONE_NEWNET) != 0)
    return Error::from_errno(errno, "network: a namespace for host %u, which needs root", host);
  state.network_pid.store(getpid());
  CACHALOT_TRY(run_command({"ip", "link", "set", "dev", "lo", "up"}));
  if (host != 0) {
    CACHALOT_TRY(wait_until([&] { return state.has_link.load(); }, host));
    return bring_up("eth0", host, options.hosts.link_bytes_per_s);
  }
  CACHALOT_TRY(run_command({"ip", "link", "add", "name", "hub", "type", "bridge"}));
  CACHALOT_TRY(bring_up("hub", host, options.hosts.link_bytes_per_s));
  for (std::uint32_t other = 1; other < options.hosts.count; ++other)
    CACHALOT_TRY(link_to(other, harness.hosts[other]));
  return {};
}

}  // namespace cachalot::replay

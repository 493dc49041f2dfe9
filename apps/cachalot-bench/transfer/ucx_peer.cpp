#include "ucx_peer.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "os/child.h"
#include "os/file_descriptor.h"
#include "os/topology.h"
#include "transfer/link/socket_address.h"

namespace cachalot::apps::bench {
namespace {

constexpr int kNotStarted = 127;
constexpr std::uint64_t kStartMs = 10'000, kRunMs = 120'000;

// A port that is free now.
Result<std::uint16_t> free_port() {
  using transfer::SocketAddress;
  CACHALOT_TRY_ASSIGN(const SocketAddress any, SocketAddress::parse("tcp:127.0.0.1:0"));
  CACHALOT_TRY_ASSIGN(const transfer::ListeningSocket listening, transfer::listen_at(any));
  CACHALOT_TRY_ASSIGN(const SocketAddress address, transfer::local_address(listening.fd.get()));
  const std::string text = address.text();
  return static_cast<std::uint16_t>(std::stoul(text.substr(text.rfind(':') + 1)));
}

// A connection to look would be taken for the client.
bool is_listening(std::uint16_t port) {
  std::array<char, 8> wanted{};
  std::snprintf(wanted.data(), wanted.size(), ":%04X", port);
  std::ifstream table("/proc/net/tcp");
  std::string number, local, remote, state;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    words >> number >> local >> remote >> state;
    if (state == "0A" && local.ends_with(wanted.data())) return true;
  }
  return false;
}

Result<os::Child> start(std::vector<std::string> arguments, int output, const int* core) {
  return os::Child::start([&] {
    if (core != nullptr) (void)os::pin_to_core(*core);
    const os::FileDescriptor nowhere(open("/dev/null", O_RDWR | O_CLOEXEC));
    dup2(output < 0 ? nowhere.get() : output, STDOUT_FILENO);
    dup2(nowhere.get(), STDERR_FILENO);
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    execvp(words[0], words.data());
    return kNotStarted;
  });
}

Status check(os::Child& child) {
  CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> status, child.wait_for(kRunMs));
  if (!status) return Error::make(Code::kTimeout, "ucx_perftest does not end");
  if (status->ok()) return {};
  if (status->exit_code == kNotStarted)
    return Error::make(Code::kUnsupported, "the program ucx_perftest is not installed");
  return Error::make(Code::kIo, "ucx_perftest ended with %s", status->text().c_str());
}

// Its last line: iterations, three latencies (median, average, overall; microseconds), average and overall MiB/s, two
// rates.
struct Figures {
  double latency_us = 0, mib_s = 0;
};
Result<Figures> parse(int fd) {
  std::string all;
  std::array<char, 4096> part;
  for (ssize_t count; (count = read(fd, part.data(), part.size())) > 0;)
    all.append(part.data(), static_cast<std::size_t>(count));
  std::istringstream lines(all);
  Figures last;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::array<double, 6> numbers{};
    std::size_t count = 0;
    while (count < numbers.size() && words >> numbers[count]) ++count;
    if (count == numbers.size()) last = {numbers[3], numbers[5]};
  }
  if (last.mib_s <= 0) return Error::make(Code::kIo, "ucx_perftest has printed no figures");
  return last;
}

Result<Figures> run(const char* test, std::uint64_t message_bytes, std::uint64_t messages,
                    const Cores* cores) {
  CACHALOT_TRY_ASSIGN(const std::uint16_t number, free_port());
  const std::string port = std::to_string(number);
  CACHALOT_TRY_ASSIGN(os::Child server, start({"ucx_perftest", "-p", port, "-E", "sleep"}, -1,
                                              cores == nullptr ? nullptr : &cores->own));
  for (const std::uint64_t end_ns = now_ns() + kStartMs * 1'000'000; !is_listening(number);) {
    CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> ended, server.wait_for(5));
    if (ended) CACHALOT_TRY(check(server));
    if (ended || now_ns() > end_ns)
      return Error::make(Code::kIo, "ucx_perftest does not listen at port %u", number);
  }
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Error::from_errno(errno, "pipe");
  const os::FileDescriptor from(ends[0]);
  os::FileDescriptor to(ends[1]);
  CACHALOT_TRY_ASSIGN(os::Child client,
                      start({"ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s",
                             std::to_string(message_bytes), "-n", std::to_string(messages), "-w",
                             "20", "-f", "-E", "sleep"},
                            to.get(), cores == nullptr ? nullptr : &cores->other));
  to.close();
  Result<Figures> figures = parse(from.get());
  CACHALOT_TRY(check(client));
  CACHALOT_TRY(check(server));
  return figures;
}

}  // namespace

Result<double> run_ucx_perftest(std::uint64_t message_bytes, std::uint64_t messages,
                                const Cores* cores) {
  CACHALOT_TRY_ASSIGN(const Figures figures, run("tag_bw", message_bytes, messages, cores));
  return figures.mib_s * (1 << 20);
}

Result<double> run_ucx_round_trips(std::uint64_t message_bytes, std::uint64_t count) {
  CACHALOT_TRY_ASSIGN(const Figures figures, run("tag_lat", message_bytes, count, nullptr));
  return 2e3 * figures.latency_us;  // it prints one way
}

}  // namespace cachalot::apps::bench

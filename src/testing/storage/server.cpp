#include "testing/storage/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/clock.h"
#include "os/file_descriptor.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kStartTimeoutNs = 60'000'000'000;
constexpr int kTries = 5;
constexpr std::size_t kLogBytes = 150;  // that fit into an error

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Below the ports that the kernel gives to outgoing connections.
std::pair<int, int> ports_of_servers() {
  constexpr int kFirst = 10'000, kFewest = 1'000, kEnd = 65'536;
  const int end = std::stoi(content("/proc/sys/net/ipv4/ip_local_port_range"));
  return {kFirst, end < kFirst + kFewest ? kEnd : end};
}

bool is_free(std::uint16_t port) {
  const os::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};  // any address of this machine
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Makes it this process's until it ends: an abstract socket has that name, also in tests in Python (ports.py).
bool reserve(std::uint16_t port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "cachalot_test_port." + std::to_string(port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return true;
  ::close(socket);
  return false;
}

// The process itself: another test's server may accept connections at that port.
bool listens(pid_t process, std::uint16_t port) {
  char end_of_address[8];
  std::snprintf(end_of_address, sizeof end_of_address, ":%04X", port);
  std::ifstream table("/proc/net/tcp");
  std::string word, local, state, inode;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    words >> word >> local >> word >> state >> word >> word >> word >> word >> word >> inode;
    if (state != "0A" || !local.ends_with(end_of_address)) continue;
    std::error_code gone;
    for (const auto& file :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", gone)) {
      if (std::filesystem::read_symlink(file, gone) == "socket:[" + inode + "]") return true;
    }
  }
  return false;
}

std::string log_path(const std::string& folder) {
  return folder + "/server.log";
}

Result<os::Child> start_child(const std::vector<std::string>& arguments,
                              const std::string& folder) {
  const std::string program = find_program(arguments[0]);
  if (program.empty())
    return Error::make(Code::kNotFound, "%s is not installed", arguments[0].c_str());
  return os::Child::start([&] {
    const int log = ::open(log_path(folder).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(log, 1);
    ::dup2(log, 2);
    if (::chdir(folder.c_str()) != 0) return 1;
    std::vector<char*> words;
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execv(program.c_str(), words.data());
    return 127;
  });
}

void replace(std::string& text, const std::string& name, std::uint16_t port) {
  const std::size_t at = text.find(name);
  if (at != std::string::npos) text.replace(at, name.size(), std::to_string(port));
}

}  // namespace

std::uint16_t free_port() {
  const auto [first, end] = ports_of_servers();
  std::random_device random;
  for (int i = 0; i < 100'000; ++i) {
    const auto port =
        static_cast<std::uint16_t>(std::uniform_int_distribution(first, end - 1)(random));
    if (is_free(port) && reserve(port)) return port;
  }
  throw std::runtime_error("no port is free");
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  }
  return "";
}

Result<TestServer> TestServer::start(const std::vector<std::string>& arguments,
                                     const std::string& folder) {
  for (int tries = 1;; ++tries) {
    const Ports ports{free_port(), free_port()};
    std::vector<std::string> words = arguments;
    for (std::string& word : words) {
      replace(word, "{port}", ports.own);
      replace(word, "{peer_port}", ports.peer);
    }
    (void)::unlink(log_path(folder).c_str());
    CACHALOT_TRY_ASSIGN(os::Child child, start_child(words, folder));
    TestServer server(std::move(words), ports, folder, std::move(child));
    const Status up = server.wait_until_up();
    if (up) return server;
    const bool is_taken =
        content(log_path(folder)).find("ddress already in use") != std::string::npos;
    if (!is_taken || tries == kTries) return up.error();
  }
}

Status TestServer::wait_until_up() {
  const auto said = [&] {
    const std::string log = content(log_path(folder_));
    return log.substr(log.size() - std::min(log.size(), kLogBytes));
  };
  const std::uint64_t until_ns = base::SteadyClock::read() + kStartTimeoutNs;
  while (base::SteadyClock::read() < until_ns) {
    if (listens(child_.pid(), ports_.own)) return {};
    CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> ended, child_.wait_for(10));
    if (ended) {
      return Error::make(Code::kIo, "%s ended with %s: %s", arguments_[0].c_str(),
                         ended->text().c_str(), said().c_str());
    }
  }
  return Error::make(Code::kTimeout, "%s does not listen: %s", arguments_[0].c_str(),
                     said().c_str());
}

void TestServer::stop() {
  child_.send(SIGSTOP);
  siginfo_t info{};
  // The kernel reports a stop when all threads of the process have stopped. An end is reported, too, and left for others.
  while (::waitid(P_PID, static_cast<id_t>(child_.pid()), &info, WSTOPPED | WEXITED | WNOWAIT) !=
             0 &&
         errno == EINTR) {
  }
}

void TestServer::kill() {
  child_.send(SIGKILL);
  (void)child_.wait();
}

Status TestServer::restart() {
  kill();
  CACHALOT_TRY_ASSIGN(child_, start_child(arguments_, folder_));
  return wait_until_up();
}

}  // namespace cachalot::storage

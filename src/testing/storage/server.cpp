#include "testing/storage/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/clock.h"
#include "os/file_descriptor.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kStartTimeoutNs = 60'000'000'000;

sockaddr_in local(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool accepts(std::uint16_t port) {
  const os::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = local(port);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

Result<os::Child> start_child(const std::vector<std::string>& arguments,
                              const std::string& folder) {
  const std::string program = find_program(arguments[0]);
  if (program.empty())
    return Error::make(Code::kNotFound, "%s is not installed", arguments[0].c_str());
  return os::Child::start([&] {
    const int log = ::open((folder + "/server.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
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

Status wait_until_up(os::Child& child, std::uint16_t port, const std::string& name) {
  const std::uint64_t until_ns = base::SteadyClock::read() + kStartTimeoutNs;
  while (base::SteadyClock::read() < until_ns) {
    if (accepts(port)) return {};
    CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> ended, child.wait_for(10));
    if (ended) return Error::make(Code::kIo, "%s ended: %s", name.c_str(), ended->text().c_str());
  }
  return Error::make(Code::kTimeout, "%s does not listen", name.c_str());
}

}  // namespace

std::uint16_t free_port() {
  const os::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = local(0);
  socklen_t bytes = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    std::abort();
  }
  return ntohs(address.sin_port);
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

Result<TestServer> TestServer::start(std::vector<std::string> arguments, std::uint16_t port,
                                     const std::string& folder) {
  CACHALOT_TRY_ASSIGN(os::Child child, start_child(arguments, folder));
  CACHALOT_TRY(wait_until_up(child, port, arguments[0]));
  return TestServer(std::move(arguments), port, folder, std::move(child));
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
  return wait_until_up(child_, port_, arguments_[0]);
}

}  // namespace cachalot::storage

// Two hosts as network namespaces, joined by links that a test delays, cuts and breaks: tests/transfer/netns_link.py, which
// says what there is to command. Needs root.
//
//   Result<NetnsLink> link = NetnsLink::start({"--links", "2"});
//   os::Child::start([&] { return link->enter('a') ? run_peer() : 1; });
//   link->send("cut link=0");
#pragma once

#include <cachalot/result.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::transfer {

class NetnsLink {
 public:
  // @param script  of netns_link.py
  // @errors kUnsupported: not root, or no namespaces here (skip the test); kIo
  static Result<NetnsLink> start(const std::string& script, std::vector<std::string> options = {}) {
    char folder[] = "/dev/shm/cachalot_link.XXXXXX";
    int in[2], out[2];
    if (mkdtemp(folder) == nullptr || pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
      return Error::from_errno(errno, "netns_link");
    std::vector<std::string> words{"python3", script, "serve", "--control",
                                   std::string(folder) + "/control"};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    Result<os::Child> child = os::Child::start([&] {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execvp(arguments[0], arguments.data());
      return 127;
    });
    close(in[0]);
    close(out[1]);
    const os::FileDescriptor ready(out[0]);
    os::FileDescriptor input(in[1]);
    if (!child) return child.error();
    NetnsLink link(folder, *std::move(child), std::move(input));
    // A line, whole: a write to a pipe without a reader would end the program.
    for (char c = 0; read(ready.get(), &c, 1) == 1;) {
      if (c == '\n') return link;
    }
    CACHALOT_TRY_ASSIGN(const os::ChildStatus ended, link.child_.wait());
    return Error::make(ended.exit_code == 77 ? Code::kUnsupported : Code::kIo,
                       "netns_link: %s; it has said why", ended.text().c_str());
  }
  NetnsLink(NetnsLink&& other) noexcept
      : folder_(std::exchange(other.folder_, {})),
        child_(std::move(other.child_)),
        input_(std::move(other.input_)) {}
  ~NetnsLink() {
    if (folder_.empty()) return;  // was moved
    input_.close();               // which ends it, unless a forked process keeps a copy
    (void)child_.wait_for(1000);
    child_.send(SIGKILL);  // the kernel ends the rest
    (void)child_.wait();
    std::filesystem::remove_all(folder_);
  }

  static std::string address(char side, int link = 0) {
    return "10.77." + std::to_string(link) + (side == 'a' ? ".1" : ".2");
  }

  // A command, as "delay 10 link=0 way=ab". @errors kInvalidArgument: it was refused; kIo
  Status send(const std::string& command) const {
    CACHALOT_TRY(call(command));
    return {};
  }
  // The same. @return the answer
  Result<std::string> call(const std::string& command) const {
    const os::FileDescriptor client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    control().copy(address.sun_path, sizeof address.sun_path - 1);
    const std::string line = command + "\n";
    if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::send(client.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) {
      return Error::from_errno(errno, "netns_link: %s", command.c_str());
    }
    std::string answer;
    char c = 0;
    while (read(client.get(), &c, 1) == 1 && c != '\n') answer += c;
    if (!answer.empty() && !answer.starts_with("error: ")) return answer;
    return Error::make(Code::kInvalidArgument, "netns_link: %s", answer.c_str());
  }

  // The calling process is on this host from here on. Call it in a child, which has one thread.
  Status enter(char side) const {
    CACHALOT_TRY(enter_namespace(side, "net", CLONE_NEWNET));
    return enter_namespace(side, "mnt", CLONE_NEWNS);
  }
  // A socket of that host, for the calling process. @param type  SOCK_STREAM, …
  Result<os::FileDescriptor> socket(char side, int type) const {
    const os::FileDescriptor home(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    CACHALOT_TRY(enter_namespace(side, "net", CLONE_NEWNET));
    os::FileDescriptor made(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
    const int os_error = errno;
    if (setns(home.get(), CLONE_NEWNET) != 0) std::abort();
    if (!made) return Error::from_errno(os_error, "netns_link: socket");
    return made;
  }

 private:
  NetnsLink(std::string folder, os::Child child, os::FileDescriptor input)
      : folder_(std::move(folder)), child_(std::move(child)), input_(std::move(input)) {}

  std::string control() const { return folder_ + "/control"; }
  Status enter_namespace(char side, const char* kind, int type) const {
    const std::string where = folder_ + "/control." + side + "." + kind;
    const os::FileDescriptor space(open(where.c_str(), O_RDONLY | O_CLOEXEC));
    if (!space || setns(space.get(), type) != 0)
      return Error::from_errno(errno, "netns_link: entering %s", where.c_str());
    return {};
  }

  std::string folder_;
  os::Child child_;
  os::FileDescriptor input_;
};

}  // namespace cachalot::transfer

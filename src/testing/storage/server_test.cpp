#include "testing/storage/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

namespace cachalot::storage {
namespace {

os::FileDescriptor listen_at(std::uint16_t port) {
  os::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1) != 0)
    socket.close();
  return socket;
}

TEST(FreePort, PortsThatOthersHaveAreNotDrawn) {
  std::vector<os::FileDescriptor> taken;
  for (unsigned port = 10'000; port < 32'768 && taken.size() < 600; port += 7)
    taken.push_back(listen_at(static_cast<std::uint16_t>(port)));
  for (int i = 0; i < 300; ++i) {
    const std::uint16_t port = free_port();
    EXPECT_TRUE(bool(listen_at(port))) << port;
  }
}

// Also of two processes that have drawn, and whose servers do not run yet.
TEST(FreePort, NoTwoDrawsOfLiveProcessesAreOnePort) {
  std::vector<std::uint16_t> drawn(200);
  std::generate(drawn.begin(), drawn.end(), free_port);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  Result<os::Child> other = os::Child::start([&] {
    for (int i = 0; i < 200; ++i) {
      const std::uint16_t port = free_port();
      if (::write(ends[1], &port, sizeof port) != sizeof port) return 1;
    }
    ::pause();
    return 0;
  });
  ASSERT_TRUE(other);
  for (int i = 0; i < 200; ++i) {
    std::uint16_t port = 0;
    ASSERT_EQ(::read(ends[0], &port, sizeof port), ssize_t(sizeof port));
    drawn.push_back(port);
  }
  EXPECT_EQ(std::set<std::uint16_t>(drawn.begin(), drawn.end()).size(), 400u);
  ::close(ends[0]);
  ::close(ends[1]);
}

// A server whose first `thefts` ports a process of its own takes before it listens itself.
constexpr const char* kRobbed = R"(
import os, signal, socket, sys, time
port, thefts = int(sys.argv[1]), int(sys.argv[2])
with open("thieves", "a+") as thieves:
    thieves.seek(0)
    if len(thieves.readlines()) < thefts:
        ready, told = os.pipe()
        process = os.fork()
        if process == 0:
            thief = socket.create_server(("127.0.0.1", port))
            os.write(told, b"x")
            signal.alarm(100)
            signal.pause()
        os.read(ready, 1)
        print(process, port, file=thieves, flush=True)
        time.sleep(0.3)
server = socket.create_server(("127.0.0.1", port))
signal.pause()
)";

class RobbedServer : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/var/tmp/cachalot_server.XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override {
    for (const auto& [process, port] : thieves()) ::kill(process, SIGKILL);
    std::filesystem::remove_all(folder_);
  }
  Result<TestServer> start(int thefts) const {
    return TestServer::start({"python3", "-c", kRobbed, "{port}", std::to_string(thefts)}, folder_);
  }
  std::vector<std::pair<pid_t, std::uint16_t>> thieves() const {
    std::vector<std::pair<pid_t, std::uint16_t>> found;
    std::ifstream file(folder_ + "/thieves");
    pid_t process = 0;
    for (std::uint16_t port = 0; file >> process >> port;) found.emplace_back(process, port);
    return found;
  }

  std::string folder_;
};

TEST_F(RobbedServer, IsStartedAgainAtAnotherPort) {
  Result<TestServer> server = start(2);
  ASSERT_TRUE(server) << server.error().message;
  const auto taken = thieves();
  ASSERT_EQ(taken.size(), 2u);
  for (const auto& [process, port] : taken) {
    EXPECT_NE(server->port(), port);
    EXPECT_FALSE(bool(listen_at(port))) << "the thief answers at " << port;
  }
  EXPECT_FALSE(bool(listen_at(server->port())));
  EXPECT_TRUE(server->restart());
}

TEST_F(RobbedServer, FailsAfterSomeTriesWithWhatItSaid) {
  const Result<TestServer> server = start(100);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, Code::kIo);
  EXPECT_NE(std::string(server.error().message).find("Address already in use"), std::string::npos)
      << server.error().message;
  EXPECT_EQ(thieves().size(), 5u);
}

TEST_F(RobbedServer, OneThatEndsForAnotherReasonIsNotStartedAgain) {
  const Result<TestServer> server =
      TestServer::start({"sh", "-c", "echo x >> starts; echo no licence; exit 3"}, folder_);
  ASSERT_FALSE(server);
  EXPECT_NE(std::string(server.error().message).find("sh ended with exit code 3: no licence"),
            std::string::npos)
      << server.error().message;
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/starts"), 2u);
}

}  // namespace
}  // namespace cachalot::storage

// A C++ test uses the links of netns_link.py. What they do is tested in netns_link_test.py.
#include "testing/transfer/netns_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

namespace cachalot::transfer {
namespace {

sockaddr_in address_of(char side, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, NetnsLink::address(side).c_str(), &address.sin_addr);
  return address;
}

bool arrives(int fd, int timeout_ms) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, timeout_ms) == 1;
}

TEST(NetnsLinkTest, ACppTestReachesBothSidesAndBreaksTheLink) {
  Result<NetnsLink> link = NetnsLink::start(CACHALOT_NETNS_LINK, {"--links", "2"});
  if (!link && link.error().code == Code::kUnsupported) GTEST_SKIP() << link.error().message;
  ASSERT_TRUE(link) << link.error().message;
  const Result<os::FileDescriptor> receiver = link->socket('b', SOCK_DGRAM);
  ASSERT_TRUE(receiver) << receiver.error().message;
  const sockaddr_in to = address_of('b', 7001);
  ASSERT_EQ(bind(receiver->get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  // A process on the other side.
  const auto send_one = [&] {
    Result<os::Child> child = os::Child::start([&] {
      if (!link->enter('a')) return 1;
      const os::FileDescriptor sender(socket(AF_INET, SOCK_DGRAM, 0));
      return sendto(sender.get(), "x", 1, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 1
                 ? 0
                 : 2;
    });
    EXPECT_TRUE(child);
    EXPECT_EQ(child->wait()->exit_code, 0);
  };
  send_one();
  ASSERT_TRUE(arrives(receiver->get(), 30'000));
  char c = 0;
  ASSERT_EQ(recv(receiver->get(), &c, 1, 0), 1);
  ASSERT_TRUE(link->send("cut link=0 way=ab"));
  send_one();
  EXPECT_FALSE(arrives(receiver->get(), 300));
  ASSERT_TRUE(link->send("heal"));
  send_one();
  EXPECT_TRUE(arrives(receiver->get(), 30'000));
  const Status refused = link->send("dleay 1");
  ASSERT_FALSE(refused);
  EXPECT_NE(std::string(refused.error().message).find("unknown command 'dleay'"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace cachalot::transfer

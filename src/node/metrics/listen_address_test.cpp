#include "node/metrics/listen_address.h"

#include <gtest/gtest.h>

namespace cachalot::node {
namespace {

TEST(ListenAddress, IsAHostOrABracketedIpv6AddressOrNothingAndAPort) {
  struct Good {
    const char* text;
    const char* host;
    int port;
  };
  for (const Good& good :
       {Good{"127.0.0.1:9464", "127.0.0.1", 9464}, Good{":0", "", 0},
        Good{"[::1]:65535", "::1", 65535}, Good{"node-1.rack_2:80", "node-1.rack_2", 80},
        Good{"[fe80::1%eth0]:9464", "fe80::1%eth0", 9464}}) {
    const Result<ListenAddress> address = parse_listen_address("--metrics", good.text);
    ASSERT_TRUE(address) << good.text;
    EXPECT_EQ(address->host, good.host);
    EXPECT_EQ(address->port, good.port);
    EXPECT_EQ(address->text(), good.text);
  }
}

TEST(ListenAddress, OfAnyOtherFormIsAnErrorThatNamesIt) {
  for (const char* text :
       {"", "9464", "localhost", "localhost:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:+1",
        "127.0.0.1: 80", "127.0.0.1:8o", "::1:9464", "[::1]", "[::1", "[]:80", "http://host:80",
        "host name:80", "host:80/metrics", "[::1]x:80", ":000080"}) {
    const Result<ListenAddress> address = parse_listen_address("--metrics", text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code, Code::kInvalidArgument);
    EXPECT_EQ(std::string(address.error().message),
              "--metrics: \"" + std::string(text) +
                  "\", expected HOST:PORT, [IPv6]:PORT or :PORT, with a port from 0 to 65535");
  }
  EXPECT_FALSE(parse_listen_address("--metrics", std::string(254, 'a') + ":80"));
}

}  // namespace
}  // namespace cachalot::node

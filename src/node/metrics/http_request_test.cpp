#include "node/metrics/http_request.h"

#include <gtest/gtest.h>

namespace cachalot::node {
namespace {

TEST(HttpRequest, AHeadEndsWithAnEmptyLine) {
  EXPECT_EQ(find_end_of_head("GET / HTTP/1.1\r\n\r\nmore"), 18u);
  EXPECT_EQ(find_end_of_head("GET / HTTP/1.1\nA: b\n\n"), 21u);
  for (const char* const open :
       {"", "GET / HTTP/1.1", "GET / HTTP/1.1\r\n", "\r\n", "a\r\nb\r\n\r"})
    EXPECT_EQ(find_end_of_head(open), std::nullopt) << open;
}

TEST(HttpRequest, IsAPathAndWhatIsAccepted) {
  const ParsedRequest parsed = parse_request(
      "GET /metrics?name=x HTTP/1.1\r\nHost: a\r\naCCept:  text/plain \r\nAccept: */*\r\n"
      "Content-Length: 0\r\n\r\n");
  EXPECT_EQ(parsed.status, 200);
  EXPECT_EQ(parsed.request.path, "/metrics");
  EXPECT_EQ(parsed.request.accept, "text/plain,*/*,");
  EXPECT_FALSE(parsed.request.is_head);
  EXPECT_TRUE(parse_request("HEAD /a HTTP/1.0\r\n\r\n").request.is_head);
  EXPECT_EQ(parse_request("GET http://host:1/health HTTP/1.1\n\n").request.path, "/health");
  EXPECT_EQ(parse_request("GET http://host HTTP/1.1\n\n").request.path, "");
}

TEST(HttpRequest, AnyOtherOneHasTheStatusOfItsFault) {
  const std::pair<const char*, int> refused[] = {
      {"POST /metrics HTTP/1.1\r\n\r\n", 405},
      {"DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", 405},
      {"GET / HTTP/1.1\r\nContent-Length: 600000000\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 413},
      {"GET / HTTP/2\r\n\r\n", 505},
      {"GET /\r\n\r\n", 400},
      {"GET  HTTP/1.1\r\n\r\n", 400},
      {" / HTTP/1.1\r\n\r\n", 400},
      {"\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"\x16\x03\x01\x02\n\n", 400},
  };
  for (const auto& [head, status] : refused) EXPECT_EQ(parse_request(head).status, status) << head;
}

}  // namespace
}  // namespace cachalot::node

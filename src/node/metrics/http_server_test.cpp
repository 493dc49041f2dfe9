// The server against clients that send too much, too slowly, nothing, or come in great number.

#include "node/metrics/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "os/file_descriptor.h"

namespace cachalot::node {
namespace {

class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
  }

  // False: the server has closed the connection.
  bool send(std::string_view bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Up to the end of the connection.
  std::string receive() {
    std::string text;
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(socket_.get(), bytes, sizeof bytes, 0)) > 0;)
      text.append(bytes, static_cast<std::size_t>(got));
    return text;
  }
  bool has_ended(int wait_ms) {
    pollfd socket{socket_.get(), POLLIN, 0};
    char byte = 0;
    return poll(&socket, 1, wait_ms) > 0 && recv(socket_.get(), &byte, 1, MSG_DONTWAIT) <= 0;
  }

 private:
  os::FileDescriptor socket_;
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    Result<std::unique_ptr<HttpServer>> server =
        HttpServer::listen({"127.0.0.1", 0}, [this](const HttpRequest& request) {
          return HttpAnswer{200, "text/plain", request.path + body_};
        });
    EXPECT_TRUE(server) << (server ? "" : server.error().message);
    server_ = *std::move(server);
  }
  std::string ask(const std::string& request) {
    Client client(server_->port());
    EXPECT_TRUE(client.send(request));
    return client.receive();
  }
  // "200", or what it is instead.
  static std::string status_of(const std::string& answer) {
    return answer.size() < 12 ? answer : answer.substr(9, 3);
  }
  // Of this process: of the clients and of the server.
  static std::ptrdiff_t open_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  }
  void expect_served() { EXPECT_EQ(status_of(ask("GET /a HTTP/1.1\r\n\r\n")), "200"); }

  std::string body_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersARequestAndClosesTheConnection) {
  EXPECT_EQ(ask("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n"
            "Connection: close\r\n\r\n/a");
  EXPECT_EQ(ask("HEAD /abc HTTP/1.0\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
            "Connection: close\r\n\r\n");
  // Pipelined ones are not answered.
  const std::string both = ask("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(both.ends_with("\r\n\r\n/a")) << both;
}

TEST_F(HttpServerTest, AnswersARequestThatComesInPieces) {
  Client client(server_->port());
  for (const char* const piece : {"GET", " /a HT", "TP/1.1\r\n", "A: b\r", "\n\r", "\n"})
    ASSERT_TRUE(client.send(piece));
  EXPECT_EQ(status_of(client.receive()), "200");
}

TEST_F(HttpServerTest, SendsAnAnswerThatIsLargerThanTheSocketTakes) {
  body_.assign(32u << 20, 'x');
  const std::string answer = ask("GET /a HTTP/1.1\r\n\r\n");
  EXPECT_GT(answer.size(), body_.size());
}

TEST_F(HttpServerTest, RefusesWhatItDoesNotServe) {
  EXPECT_EQ(status_of(ask("POST / HTTP/1.1\r\n\r\n")), "405");
  EXPECT_NE(ask("PUT / HTTP/1.1\r\n\r\n").find("\r\nAllow: GET, HEAD\r\n"), std::string::npos);
  EXPECT_EQ(status_of(ask("GET / HTTP/3\r\n\r\n")), "505");
  EXPECT_EQ(status_of(ask("\x16\x03\x01\r\n\r\n")), "400");
}

// The client gets the answer, although it goes on sending.
TEST_F(HttpServerTest, ABodyIsRefusedBeforeItIsRead) {
  for (const char* const header : {"Transfer-Encoding: chunked", "Content-Length: 600000000"}) {
    Client client(server_->port());
    ASSERT_TRUE(client.send(std::string("GET /a HTTP/1.1\r\n") + header + "\r\n\r\n"));
    const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
    for (int i = 0; i < 16 && client.send(chunk); ++i) {
    }
    EXPECT_EQ(status_of(client.receive()), "413") << header;
  }
}

TEST_F(HttpServerTest, AHeadOfMoreThan8KiBIsRefused) {
  const std::string many_headers = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "Name: value\r\n";
    return text;
  }();
  const std::string one_header = "Name: " + std::string(1u << 20, 'x');
  for (const std::string& headers : {many_headers, one_header})
    EXPECT_EQ(status_of(ask("GET /a HTTP/1.1\r\n" + headers)), "431");
  EXPECT_EQ(status_of(ask(std::string(8192, 'x'))), "431");
}

TEST_F(HttpServerTest, BeyondItsConnectionsTheOldestIsClosed) {
  constexpr int kClients = 300;
  constexpr std::ptrdiff_t kConnections = 64;
  const std::ptrdiff_t before = open_descriptors();
  std::vector<Client> silent;
  for (int i = 0; i < kClients; ++i) {
    silent.emplace_back(server_->port());
    EXPECT_TRUE(silent.back().send(i % 2 == 0 ? "GET /" : ""));
  }
  expect_served();  // so the server has seen all before it
  EXPECT_LE(open_descriptors(), before + kClients + kConnections);
  EXPECT_TRUE(silent.front().has_ended(10'000));
}

// One that sends a byte now and then has no more time than another.
TEST_F(HttpServerTest, ASlowClientIsDisconnected) {
  Client client(server_->port());
  do {
    static_cast<void>(client.send("x"));
  } while (!client.has_ended(100));
  expect_served();
}

TEST_F(HttpServerTest, EndsWhileClientsAreSilent) {
  std::vector<Client> silent;
  for (int i = 0; i < 100; ++i) silent.emplace_back(server_->port());
  server_.reset();
  EXPECT_TRUE(silent.back().has_ended(10'000));
}

}  // namespace
}  // namespace cachalot::node

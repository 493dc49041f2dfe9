// An HTTP/1.1 server for short answers to GET and HEAD whose clients are not trusted: one thread, and a limit for
// all that a client can make it hold.
//
//   a request's head         8 KiB; more: 431
//   a request's body         none: 413
//   time                     2 s for the request, 10 s to take the answer, then the connection is closed
//   connections              64; beyond them the oldest one is closed
//
// So a client that sends nothing, or sends slowly, or opens any number of connections costs 64 descriptors and
// some memory, and delays no other. A connection carries one request.
//
// Why not cpp-httplib, which this program's tests use: in the versions of Debian and Ubuntu neither the lines nor the
// number of headers have a limit, each read may take the whole time-out, and a silent client takes one of its threads
// (docs/decisions/0021-own-http-server.md).
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "node/metrics/http_request.h"
#include "node/metrics/listen_address.h"

namespace cachalot::node {

struct HttpAnswer {
  int status = 200;
  std::string type;  // Content-Type
  std::string body;
};

class HttpServer {
 public:
  using Handler = std::function<HttpAnswer(const HttpRequest&)>;

  // Listens, and answers from now on. The server's thread calls `handler`; its body is the whole answer.
  // @errors kBusy, kPermission, kIo: the address cannot be listened at; kInvalidArgument: there is no such host
  static Result<std::unique_ptr<HttpServer>> listen(const ListenAddress& address, Handler handler);
  // Waits for an answer that is being made. Answers that clients have not taken are cut off.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Which one was found for port 0.
  std::uint16_t port() const { return port_; }

 private:
  class Loop;
  HttpServer();

  std::uint16_t port_ = 0;
  std::unique_ptr<Loop> loop_;
};

}  // namespace cachalot::node

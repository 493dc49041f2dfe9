// The HTTP side: OpenAI's routes in front of the engine.
//
//   POST /v1/completions        POST /v1/chat/completions     answers, whole or as server-sent events
//   GET  /v1/models             GET  /v1/models/NAME          the one model
//   GET  /health                                              slots, and how busy they are
//
// A client that goes away is noticed within a moment, and its request ends.
#pragma once

#include <cachalot/result.h>

#include <functional>
#include <memory>
#include <string>

#include "engine.h"
#include "model.h"

namespace cachalot::llama {

struct HttpOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 8080;  // 0: any that is free
  std::string model_name;
  // Connections are accepted no longer, for a reason that the system has. @threads one of the server's
  std::function<void()> on_end = {};
};

class HttpServer {
 public:
  // Accepts connections from here on.
  // @errors kBusy: the port is taken, kInvalidArgument: the address
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options, const Model& model,
                                                    Engine& engine);
  // Lets answers end that are being sent: stop the engine first, which cancels them.
  // @return false: a prompt is being tokenised, which cannot be interrupted and may take minutes. The
  //         destructor would wait for it: end the process instead.
  bool finish();
  ~HttpServer();

  std::uint16_t port() const;
  // After on_end.
  bool has_ended() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::llama

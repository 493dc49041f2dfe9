#include "http_server.h"

#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <exception>
#include <thread>

#include "answer.h"

namespace cachalot::llama {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kSpareThreads = 16;  // for /health and refusals while all requests wait
constexpr std::chrono::milliseconds kNap{1};
constexpr std::chrono::milliseconds kPoll{100};  // how long a client that left may go unnoticed

void send_json(httplib::Response& response, int status, const json& value) {
  response.status = status;
  response.set_content(to_text(value) + "\n", "application/json");
}

void send_error(httplib::Response& response, const ApiError& error) {
  if (error.status == 503) response.set_header("Retry-After", "1");
  send_json(response, error.status, error_json(error));
}

// What was asked, and how the answer is sent; shared by the calls of a content provider.
struct Exchange {
  std::shared_ptr<Job> job;
  Answer answer;
  std::string text = {};   // of a whole answer, so far
  bool has_begun = false;  // of a stream
};

// The busy ones.
class Counted {
 public:
  explicit Counted(std::atomic<std::size_t>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<std::size_t>& count_;
};

bool send(httplib::DataSink& sink, const std::string& text) {
  return sink.write(text.data(), text.size());
}

bool send_piece(httplib::DataSink& sink, const json& piece) {
  return send(sink, "data: " + to_text(piece) + "\n\n");
}

bool send_end(Exchange& exchange, const Event& event, httplib::DataSink& sink) {
  if (event.error) {
    // The status went out long ago; this is what clients look for in a stream.
    if (!send_piece(sink, error_json(api_error(*event.error)))) return false;
  } else {
    if (!send_piece(sink, exchange.answer.end(*event.finish))) return false;
    const bool wants_usage = exchange.job->request.include_usage;
    if (wants_usage && !send_piece(sink, exchange.answer.usage_piece(exchange.job->usage))) {
      return false;
    }
  }
  if (!send(sink, "data: [DONE]\n\n")) return false;
  sink.done();
  return true;
}

// Sends what there is. @return false: the connection is to be closed
bool send_stream(Exchange& exchange, httplib::DataSink& sink) {
  const std::optional<Event> event = exchange.job->take(kPoll);
  if (!event) return sink.is_writable();
  const bool is_chat = exchange.job->request.is_chat();
  if (!exchange.has_begun && is_chat && !event->error) {
    if (!send_piece(sink, exchange.answer.begin())) return false;
  }
  exchange.has_begun = true;
  if (!event->text.empty() && !send_piece(sink, exchange.answer.delta(event->text))) return false;
  if (event->finish || event->error) return send_end(exchange, *event, sink);
  return true;
}

bool send_whole(Exchange& exchange, httplib::DataSink& sink) {
  const std::optional<Event> event = exchange.job->take(kPoll);
  if (!event) return sink.is_writable();
  if (event->error) {
    // The status went out before: at least it is JSON, and says what is wrong.
    if (!send(sink, to_text(error_json(api_error(*event->error))) + "\n")) return false;
    sink.done();
    return true;
  }
  exchange.text += event->text;
  if (!event->finish) return sink.is_writable();
  const json answer = exchange.answer.whole(exchange.text, *event->finish, exchange.job->usage,
                                            exchange.job->reference);
  if (!send(sink, to_text(answer) + "\n")) return false;
  sink.done();
  return true;
}

// What a prompt that fits can take: each byte of a text as \u0061, each token as a number with blanks
// around it, and room for all else.
std::size_t most_body_bytes(const Model& model, std::size_t context_tokens) {
  constexpr std::size_t kMost = std::size_t{16} << 20, kAllElse = std::size_t{1} << 20;
  constexpr std::size_t kEscapedByte = 6, kNumber = 64;
  const std::size_t a_token = std::max(kEscapedByte * model.most_token_bytes(), kNumber);
  return std::min(kMost, kAllElse + context_tokens * a_token);
}

Result<std::string> read_body(const httplib::Request& request, const httplib::ContentReader& read,
                              std::size_t most) {
  if (request.is_multipart_form_data()) {
    return Error::make(Code::kInvalidArgument, "the body is a form, expected JSON");
  }
  std::string body;
  const bool is_read = read([&](const char* data, std::size_t bytes) {
    body.append(data, bytes);
    return body.size() <= most;
  });
  if (is_read) return body;
  const std::uint64_t told = request.get_header_value<std::uint64_t>("Content-Length");
  if (body.size() > most || told > most) {
    return Error::make(Code::kNoSpace,
                       "the body is longer than %zu bytes, the limit for this context", most);
  }
  return Error::make(Code::kBadInput, "the body is incomplete: it ends after %zu bytes",
                     body.size());
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpOptions options_in, const Model& model_in, Engine& engine_in)
      : options(std::move(options_in)), model(model_in), engine(engine_in) {}

  void add_routes();
  void answer(bool is_chat, const std::string& body, httplib::Response& response);
  // @return what is wrong; `job` is set where nothing is
  std::optional<ApiError> make_job(Request request, std::shared_ptr<Job>& job);
  json model_json() const;

  HttpOptions options;
  const Model& model;
  Engine& engine;
  const std::size_t most_body = most_body_bytes(model, engine.context_tokens());
  const std::int64_t started = std::time(nullptr);
  std::atomic<std::size_t> unfinished{0};  // answers
  std::atomic<std::size_t> tokenising{0};  // requests
  std::atomic<bool> is_stopping{false}, has_ended{false};
  httplib::Server server;
  std::uint16_t port = 0;
  std::thread thread;
};

std::optional<ApiError> HttpServer::Impl::make_job(Request request, std::shared_ptr<Job>& job) {
  const char* const prompt_name = request.is_chat() ? "messages" : "prompt";
  const std::size_t context = engine.context_tokens();
  if (engine.is_closed()) return api_error(Engine::closed_error());
  Result<std::vector<Token>> tokens = [&] {
    const Counted counted(tokenising);
    return model.tokens_of(request.prompt, context);
  }();
  ApiError error;
  error.code = "context_length_exceeded";
  if (!tokens) {
    if (tokens.error().code != Code::kNoSpace) error = api_error(tokens.error());
    error.message = tokens.error().message;
    error.param = prompt_name;
    return error;
  }
  if (tokens->size() >= context) {
    error.message = "the prompt has " + std::to_string(tokens->size()) +
                    " tokens, expected fewer than the context's " + std::to_string(context);
    error.param = prompt_name;
    return error;
  }
  const std::size_t room = context - tokens->size();
  const std::size_t wanted = request.max_tokens.value_or(room);
  if (wanted > room && request.has_own_max_tokens) {
    error.message = "max_tokens is " + std::to_string(wanted) + ", and the prompt's " +
                    std::to_string(tokens->size()) + " tokens leave " + std::to_string(room) +
                    " of the context's " + std::to_string(context);
    error.param = "max_tokens";
    return error;
  }
  job = std::make_shared<Job>(*std::move(tokens), std::move(request),
                              static_cast<std::uint32_t>(std::min(wanted, room)));
  return {};
}

void HttpServer::Impl::answer(bool is_chat, const std::string& body, httplib::Response& response) {
  Request request;
  std::optional<ApiError> error = is_chat ? parse_chat(body, options.model_name, request)
                                          : parse_completion(body, options.model_name, request);
  std::shared_ptr<Job> job;
  if (!error) error = make_job(std::move(request), job);
  if (error) return send_error(response, *error);
  const Status submitted = engine.submit(job);
  if (!submitted) return send_error(response, api_error(submitted.error()));

  const auto exchange = std::make_shared<Exchange>(
      Exchange{job, Answer(options.model_name, is_chat, job->request.include_usage)});
  ++unfinished;
  const auto release = [this, job](bool) {
    job->cancel();
    --unfinished;
  };
  if (job->request.stream) {
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream",
        [exchange](std::size_t, httplib::DataSink& sink) { return send_stream(*exchange, sink); },
        release);
  } else {
    // In chunks too, since only what is being sent can notice that its client left.
    response.set_chunked_content_provider(
        "application/json",
        [exchange](std::size_t, httplib::DataSink& sink) { return send_whole(*exchange, sink); },
        release);
  }
}

json HttpServer::Impl::model_json() const {
  return {{"id", options.model_name},
          {"object", "model"},
          {"created", started},
          {"owned_by", "cachalot"},
          {"max_model_len", engine.context_tokens()}};
}

void HttpServer::Impl::add_routes() {
  const auto post = [this](bool is_chat) {
    return [this, is_chat](const httplib::Request& request, httplib::Response& response,
                           const httplib::ContentReader& read) {
      const Result<std::string> body = read_body(request, read, most_body);
      if (body) return answer(is_chat, *body, response);
      ApiError error = api_error(body.error());
      error.status = body.error().code == Code::kNoSpace    ? 413
                     : body.error().code == Code::kBadInput ? 400
                                                            : 415;
      error.type = "invalid_request_error";
      send_error(response, error);
    };
  };
  server.Post("/v1/completions", post(false));
  server.Post("/v1/chat/completions", post(true));
  server.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
    send_json(response, 200, {{"object", "list"}, {"data", json::array({model_json()})}});
  });
  server.Get(
      "/v1/models/(.+)", [this](const httplib::Request& request, httplib::Response& response) {
        if (request.matches[1] == options.model_name) return send_json(response, 200, model_json());
        ApiError error;
        error.status = 404;
        error.message = "there is no such model, expected " + json(options.model_name).dump();
        error.code = "model_not_found";
        send_error(response, error);
      });
  server.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
    const Engine::Load load = engine.load();
    json health = {{"status", "ok"},
                   {"slots", load.slots},
                   {"busy_slots", load.busy_slots},
                   {"queued", load.queued}};
    if (const auto pool = engine.pool_health()) {
      health["pool"] = {{"damaged_blocks", pool->damaged_blocks},
                        {"replaced_chains", pool->replaced_chains},
                        {"failures", pool->failures}};
    }
    if (const auto host = engine.host_cache()) {
      health["host_cache"] = {{"blocks", host->blocks},
                              {"bytes", host->bytes},
                              {"hit_blocks", host->hit_blocks},
                              {"evicted_blocks", host->evicted_blocks}};
    }
    if (const auto transfer = engine.transfer()) {
      const TransferStatistics& counts = transfer->of_rank;
      health["transfer"] = {{"pages", transfer->pages},
                            {"free_pages", transfer->free_pages},
                            {"open_offers", counts.open_offers},
                            {"open_asks", counts.open_asks},
                            {"taken_offers", counts.taken_offers},
                            {"expired_offers", counts.expired_offers},
                            {"done_asks", counts.done_asks},
                            {"failed_asks", counts.failed_asks},
                            {"sent_bytes", counts.sent_bytes},
                            {"received_bytes", counts.received_bytes},
                            {"copied_bytes", counts.copied_bytes}};
    }
    send_json(response, 200, health);
  });
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    ApiError error;
    error.status = response.status;
    error.message = response.status == 404
                        ? request.method + " " + request.path +
                              ": no such route, expected POST /v1/completions, POST "
                              "/v1/chat/completions, GET /v1/models or GET /health"
                        : "the request cannot be served";
    send_error(response, error);
  });
  server.set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, std::exception_ptr thrown) {
        ApiError error;
        error.status = 500;
        error.type = "server_error";
        try {
          std::rethrow_exception(std::move(thrown));
        } catch (const std::exception& exception) {
          error.message = std::string("unexpected: ") + exception.what();
        } catch (...) {
          error.message = "unexpected";
        }
        send_error(response, error);
      });
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options,
                                                       const Model& model, Engine& engine) {
  auto impl = std::make_unique<Impl>(options, model, engine);
  httplib::Server& server = impl->server;
  // A request that waits has a thread that waits.
  const std::size_t threads = engine.most_requests() + kSpareThreads;
  server.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
  // The library's own choice lets two servers share a port without knowing.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_tcp_nodelay(true);
  server.set_keep_alive_max_count(10'000);
  server.set_keep_alive_timeout(2);
  server.set_payload_max_length(impl->most_body);
  impl->add_routes();
  errno = 0;
  const int port = options.port == 0 ? server.bind_to_any_port(options.address)
                   : server.bind_to_port(options.address, options.port) ? options.port
                                                                        : -1;
  if (port <= 0) {
    return errno == 0 ? Error::make(Code::kInvalidArgument, "%.80s port %u: cannot listen",
                                    options.address.c_str(), options.port)
                      : Error::from_errno(errno, "%.80s port %u: listening",
                                          options.address.c_str(), options.port);
  }
  impl->port = static_cast<std::uint16_t>(port);
  impl->thread = std::thread([of = impl.get()] {
    of->server.listen_after_bind();
    of->has_ended = true;
    if (!of->is_stopping && of->options.on_end) of->options.on_end();
  });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

bool HttpServer::finish() {
  constexpr auto kPatience = std::chrono::seconds(2);
  // The library breaks answers off when it stops: first they get the word that they are cancelled.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (impl_->unfinished + impl_->tokenising > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kNap);
  }
  return impl_->tokenising == 0;
}

HttpServer::~HttpServer() {
  (void)finish();
  // Before it runs, a server does not hear that it shall stop.
  impl_->is_stopping = true;
  while (!impl_->server.is_running() && !impl_->has_ended) std::this_thread::sleep_for(kNap);
  impl_->server.stop();
  impl_->thread.join();
}

bool HttpServer::has_ended() const {
  return impl_->has_ended;
}

std::uint16_t HttpServer::port() const {
  return impl_->port;
}

}  // namespace cachalot::llama

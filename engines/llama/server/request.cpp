#include "request.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "body_reader.h"
#include "reference_json.h"

namespace cachalot::llama {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMostStops = 16;
constexpr double kHottest = 100;  // OpenAI's limit is 2

void read_sampling(BodyReader& body, Request& request) {
  request.sampling.temperature = static_cast<float>(body.number("temperature", 1, 0, kHottest));
  request.sampling.top_p = static_cast<float>(body.number("top_p", 1, 0, 1));
  request.sampling.top_k =
      static_cast<std::int32_t>(body.integer("top_k", 0, kMostTokens).value_or(0));
  const auto seed = body.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                 std::numeric_limits<std::int64_t>::max());
  // Folded, so that seeds of 64 bits that differ in either half differ.
  if (seed) request.sampling.seed = static_cast<std::uint32_t>(*seed ^ (*seed >> 32));
}

void add_stop(BodyReader& body, const json& stop, Request& request) {
  if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
    return body.fail("stop", "stop contains an empty text or another type, expected texts");
  }
  request.stops.push_back(stop.get<std::string>());
}

void read_stops(BodyReader& body, Request& request) {
  const json* const stop = body.find("stop");
  if (stop == nullptr) return;
  if (!stop->is_array()) return add_stop(body, *stop, request);
  if (stop->size() > kMostStops) {
    return body.fail("stop", "stop has " + std::to_string(stop->size()) +
                                 " texts, expected at most " + std::to_string(kMostStops));
  }
  for (const json& one : *stop) add_stop(body, one, request);
}

void read_stream(BodyReader& body, Request& request) {
  request.stream = body.boolean("stream", false);
  const json* const options = body.find("stream_options");
  if (options == nullptr) return;
  if (!request.stream) {
    return body.fail("stream_options", "stream_options is given without stream: true");
  }
  if (!options->is_object()) return body.fail("stream_options", "stream_options is not an object");
  for (const auto& option : options->items()) {
    if (option.key() == "include_usage" && option.value().is_boolean()) {
      request.include_usage = option.value().get<bool>();
    } else if (option.key() != "include_obfuscation") {  // nothing is obfuscated here
      body.fail("stream_options", "stream_options: expected include_usage: true or false");
    }
  }
}

void read_kv_transfer(BodyReader& body, Request& request) {
  const json* const given = body.find("kv_transfer_params");
  if (given == nullptr) return;
  if (!given->is_object()) {
    return body.fail("kv_transfer_params", "kv_transfer_params is not an object");
  }
  const json remote = given->value("do_remote_decode", json());
  if (!remote.is_null() && !remote.is_boolean()) {
    return body.fail("kv_transfer_params",
                     "kv_transfer_params.do_remote_decode is not true or false");
  }
  request.kv_transfer.do_remote_decode = remote == true;
  if (request.kv_transfer.do_remote_decode && request.stream) {
    return body.fail("kv_transfer_params",
                     "kv_transfer_params.do_remote_decode is given with stream: true");
  }
  // Of all else, as other engines have it, nothing is known here.
  const json reference = given->value(kReferenceName, json());
  if (reference.is_null()) return;
  request.kv_transfer.reference = reference_of(reference);
  request.kv_transfer.has_unknown_reference = !request.kv_transfer.reference;
}

void read_model(BodyReader& body, std::string_view model) {
  const auto name = body.text("model");
  if (!name || *name == model) return;
  body.fail("model",
            "there is no model " +
                json(name->substr(0, 80)).dump(-1, ' ', true, json::error_handler_t::replace) +
                ", expected " + json(std::string(model)).dump(),
            "model_not_found");
}

// What both calls have.
void read_shared(BodyReader& body, std::string_view model, Request& request) {
  read_model(body, model);
  read_sampling(body, request);
  read_stops(body, request);
  read_stream(body, request);
  read_kv_transfer(body, request);
  request.ignore_eos = body.boolean("ignore_eos", false);
  body.only("n", 1);
  body.only("presence_penalty", 0);
  body.only("frequency_penalty", 0);
  body.only("logit_bias", json::object());
  for (const char* name : {"user", "metadata", "store", "safety_identifier", "prompt_cache_key"}) {
    body.ignore(name);
  }
}

void read_max_tokens(BodyReader& body, const char* name, Request& request) {
  const auto tokens = body.integer(name, 1, kMostTokens);
  if (!tokens) return;
  request.max_tokens = static_cast<std::uint32_t>(*tokens);
  request.has_own_max_tokens = true;
}

std::optional<std::vector<Token>> tokens_of(const json& prompt) {
  std::vector<Token> tokens;
  for (const json& token : prompt) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > kMostTokens) return {};
    tokens.push_back(token.get<Token>());
  }
  return tokens;
}

void read_prompt(BodyReader& body, Request& request) {
  const json* const prompt = body.find("prompt");
  if (prompt == nullptr) return body.fail("prompt", "prompt is missing, expected a text");
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
  } else if (prompt->is_array() && prompt->size() == 1 && prompt->front().is_string()) {
    request.prompt = prompt->front().get<std::string>();
  } else if (auto tokens = prompt->is_array() ? tokens_of(*prompt) : std::nullopt; tokens) {
    request.prompt = *std::move(tokens);
  } else {
    body.fail("prompt",
              "prompt is not one text or an array of tokens; send one request per prompt");
  }
}

// A content is a text, or an array of parts of which only texts are served.
std::optional<std::string> content_of(const json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return {};
  std::string text;
  for (const json& part : *content) {
    const bool is_text = part.is_object() && part.value("type", json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) return {};
    text += part["text"].get<std::string>();
  }
  return text;
}

void read_message(BodyReader& body, const json& message, std::size_t index,
                  std::vector<Message>& messages) {
  const std::string name = "messages[" + std::to_string(index) + "]";
  if (!message.is_object()) return body.fail("messages", name + " is not an object");
  const json role = message.value("role", json());
  const bool is_known =
      role == "system" || role == "developer" || role == "user" || role == "assistant";
  if (!is_known) {
    return body.fail("messages", name + ".role is not one of system, developer, user, assistant");
  }
  const std::optional<std::string> content = content_of(message);
  if (!content) return body.fail("messages", name + ".content is not a text");
  // The library takes texts that end at a zero.
  if (content->find('\0') != std::string::npos) {
    return body.fail("messages", name + ".content has a zero character");
  }
  // A developer's words are what older models call the system's.
  messages.push_back({role == "developer" ? "system" : role.get<std::string>(), *content});
}

void read_messages(BodyReader& body, Request& request) {
  const json* const list = body.find("messages");
  if (list == nullptr) return body.fail("messages", "messages is missing, expected an array");
  if (!list->is_array() || list->empty()) {
    return body.fail("messages", "messages is not an array of at least one message");
  }
  std::vector<Message> messages;
  for (std::size_t i = 0; i < list->size(); ++i) read_message(body, (*list)[i], i, messages);
  request.prompt = std::move(messages);
}

std::optional<ApiError> finished(BodyReader& body) {
  body.refuse_others();
  std::optional<ApiError> error = body.error();
  if (error && error->code == "model_not_found") error->status = 404;
  return error;
}

}  // namespace

std::optional<ApiError> parse_completion(std::string_view text, std::string_view model,
                                         Request& request) {
  constexpr std::uint32_t kDefaultTokens = 16;  // OpenAI's
  BodyReader body(text);
  read_shared(body, model, request);
  read_prompt(body, request);
  request.max_tokens = kDefaultTokens;
  read_max_tokens(body, "max_tokens", request);
  body.only("best_of", 1);
  body.only("echo", false);
  body.only("suffix", "");
  body.only("logprobs", nullptr);
  return finished(body);
}

std::optional<ApiError> parse_chat(std::string_view text, std::string_view model,
                                   Request& request) {
  BodyReader body(text);
  read_shared(body, model, request);
  read_messages(body, request);
  read_max_tokens(body, "max_tokens", request);
  read_max_tokens(body, "max_completion_tokens", request);
  body.only("logprobs", false);
  body.only("response_format", {{"type", "text"}});
  body.only("tools", nullptr);
  body.only("tool_choice", "none");
  return finished(body);
}

}  // namespace cachalot::llama

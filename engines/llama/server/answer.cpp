#include "answer.h"

#include <ctime>
#include <random>
#include <utility>

#include "reference_json.h"

namespace cachalot::llama {
namespace {

using json = nlohmann::ordered_json;

std::string new_id(const char* prefix) {
  std::random_device random;
  char digits[24];
  std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
  return prefix + std::string(digits);
}

const char* finish_name(Finish finish) {
  return finish == Finish::kStop ? "stop" : "length";
}

json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details",
           {{"cached_tokens",
             usage.own_tokens + usage.host_tokens + usage.pool_tokens + usage.transfer_tokens},
            {"host_tokens", usage.host_tokens},
            {"pool_tokens", usage.pool_tokens},
            {"transfer_tokens", usage.transfer_tokens},
            {"storage_tokens", usage.storage_tokens},
            {"unused_storage_tokens", usage.unused_storage_tokens}}}};
}

double ms(std::uint64_t ns) {
  return static_cast<double>(ns / 1000) / 1000;
}

json timings_json(const Usage& usage) {
  return {{"queue_ms", ms(usage.queue_ns)},
          {"first_token_ms", ms(usage.first_token_ns)},
          {"prompt_load_ms", ms(usage.load_ns)},
          {"prompt_compute_ms", ms(usage.compute_ns)},
          {"prompt_store_ms", ms(usage.store_ns)},
          {"prompt_wait_ms", ms(usage.wait_ns)},
          {"prompt_transfer_wait_ms", ms(usage.transfer_wait_ns)},
          {"prompt_storage_wait_ms", ms(usage.storage_wait_ns)},
          {"prompt_cpu_ms", ms(usage.prompt_cpu_ns)},
          {"total_ms", ms(usage.total_ns)}};
}

}  // namespace

Answer::Answer(std::string model, bool is_chat, bool include_usage)
    : id_(new_id(is_chat ? "chatcmpl-" : "cmpl-")),
      model_(std::move(model)),
      created_(std::time(nullptr)),
      is_chat_(is_chat),
      include_usage_(include_usage) {}

json Answer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

json Answer::whole(std::string_view text, Finish finish, const Usage& usage,
                   const std::optional<PromptReference>& reference) const {
  json answer = head(is_chat_ ? "chat.completion" : "text_completion");
  json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", finish_name(finish)}};
  if (is_chat_) {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  answer["choices"] = json::array({std::move(choice)});
  answer["usage"] = usage_json(usage);
  answer["timings"] = timings_json(usage);
  if (reference) answer["kv_transfer_params"] = {{kReferenceName, reference_json(*reference)}};
  return answer;
}

json Answer::piece(json choice) const {
  json piece = head(is_chat_ ? "chat.completion.chunk" : "text_completion");
  choice["index"] = 0;
  choice["logprobs"] = nullptr;
  if (!choice.contains("finish_reason")) choice["finish_reason"] = nullptr;
  piece["choices"] = json::array({std::move(choice)});
  if (include_usage_) piece["usage"] = nullptr;
  return piece;
}

json Answer::begin() const {
  return piece({{"delta", {{"role", "assistant"}, {"content", ""}}}});
}

json Answer::delta(std::string_view text) const {
  if (is_chat_) return piece({{"delta", {{"content", text}}}});
  return piece({{"text", text}});
}

json Answer::end(Finish finish) const {
  json choice = {{"finish_reason", finish_name(finish)}};
  if (is_chat_) {
    choice["delta"] = json::object();
  } else {
    choice["text"] = "";
  }
  return piece(std::move(choice));
}

json Answer::usage_piece(const Usage& usage) const {
  json piece = head(is_chat_ ? "chat.completion.chunk" : "text_completion");
  piece["choices"] = json::array();
  piece["usage"] = usage_json(usage);
  piece["timings"] = timings_json(usage);
  return piece;
}

json error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

ApiError api_error(const Error& error) {
  ApiError answer;
  answer.message = error.message;
  switch (error.code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
      break;
    case Code::kBusy:
    case Code::kCancelled:
      answer.status = 503;
      answer.type = "server_error";
      break;
    default:
      answer.status = 500;
      answer.type = "server_error";
  }
  return answer;
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

}  // namespace cachalot::llama

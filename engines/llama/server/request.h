// What a client asks for, read from the body of a request and checked value by value.
//
// A parameter that would change the answer and is not served is refused, so that no client takes an
// answer for what it is not; what only describes the caller (user, metadata, store) is ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "../prompt_reference.h"
#include "slot_choice.h"

namespace cachalot::llama {

// As OpenAI's API says what is wrong.
struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // the parameter in question; empty: none
  std::string code;   // for programs; empty: none
  const char* type = "invalid_request_error";
};

struct Message {
  std::string role, content;
};

struct Sampling {
  float temperature = 1.0F;  // 0: always the likeliest token
  float top_p = 1.0F;
  std::int32_t top_k = 0;  // 0: all tokens
  std::optional<std::uint32_t> seed;
};

// kv_transfer_params: between processes without a common pool. It changes where the KV of the prompt comes from, and
// never the answer.
struct KvTransfer {
  bool do_remote_decode = false;  // another process will go on: the answer carries a reference
  std::optional<PromptReference> reference;
  bool has_unknown_reference = false;  // of another form
};

struct Request {
  using Prompt = std::variant<std::string, std::vector<Token>, std::vector<Message>>;

  Prompt prompt;  // a text, its tokens, or the turns of a conversation
  std::optional<std::uint32_t> max_tokens;
  bool has_own_max_tokens = false;  // max_tokens was asked for, and is no default
  Sampling sampling;
  std::vector<std::string> stops;
  bool ignore_eos = false;  // go on to max_tokens, for measurements
  bool stream = false, include_usage = false;
  KvTransfer kv_transfer;

  bool is_chat() const { return std::holds_alternative<std::vector<Message>>(prompt); }
};

// `model` is the name that is served: a body may leave it out, and may not name another.
// @return what is wrong; `request` is whole only where nothing is
std::optional<ApiError> parse_completion(std::string_view body, std::string_view model,
                                         Request& request);
std::optional<ApiError> parse_chat(std::string_view body, std::string_view model, Request& request);

}  // namespace cachalot::llama

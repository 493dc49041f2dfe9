// Answers in the form of OpenAI's API: whole, in pieces of a stream, and errors.
//
// What it adds: usage.prompt_tokens_details.cached_tokens as vLLM and SGLang report it, of which
// pool_tokens were read from the pool, transfer_tokens came from another process, and the rest was the slot's own;
// kv_transfer_params as vLLM has it; and timings in milliseconds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "job.h"
#include "request.h"

namespace cachalot::llama {

// What all parts of one answer have in common.
class Answer {
 public:
  // A new id. @param model  the name that is served
  Answer(std::string model, bool is_chat, bool include_usage);

  nlohmann::ordered_json whole(std::string_view text, Finish finish, const Usage& usage,
                               const std::optional<PromptReference>& reference = {}) const;

  // Of a stream, in this order: begin, deltas, end, usage where it was asked for.
  nlohmann::ordered_json begin() const;  // chat only: the role
  nlohmann::ordered_json delta(std::string_view text) const;
  nlohmann::ordered_json end(Finish finish) const;
  nlohmann::ordered_json usage_piece(const Usage& usage) const;

 private:
  nlohmann::ordered_json head(const char* object) const;
  nlohmann::ordered_json piece(nlohmann::ordered_json choice) const;

  std::string id_, model_;
  std::int64_t created_;
  bool is_chat_, include_usage_;
};

nlohmann::ordered_json error_json(const ApiError& error);
// What an error of the engine is to a client.
ApiError api_error(const Error& error);

// The text of a JSON value; bytes that are no UTF-8 become U+FFFD.
std::string to_text(const nlohmann::ordered_json& json);

}  // namespace cachalot::llama

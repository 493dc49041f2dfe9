// Reads the members of a JSON object one by one, and keeps the first thing that is wrong.
//
// null is taken for a member that is absent, as OpenAI's clients write it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "request.h"

namespace cachalot::llama {

class BodyReader {
 public:
  explicit BodyReader(std::string_view body);

  // nullptr: absent, or an error came before.
  const nlohmann::json* find(const char* name);
  // The values are within their bounds, or the default where the member is absent or wrong.
  double number(const char* name, double otherwise, double low, double high);
  std::optional<std::int64_t> integer(const char* name, std::int64_t low, std::int64_t high);
  bool boolean(const char* name, bool otherwise);
  std::optional<std::string> text(const char* name);

  // For parameters that exist, and are served with this value only.
  void only(const char* name, const nlohmann::json& served);
  // For parameters that make no difference to the answer.
  void ignore(const char* name) { find(name); }
  // At the end: a member that was not read is an error.
  void refuse_others();

  void fail(const char* name, std::string message, const char* code = "");
  const std::optional<ApiError>& error() const { return error_; }

 private:
  nlohmann::json body_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

}  // namespace cachalot::llama

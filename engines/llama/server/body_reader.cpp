#include "body_reader.h"

#include <cmath>
#include <utility>

namespace cachalot::llama {
namespace {

// A value as it may stand in a message: short, and in one line.
std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMost = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMost) {
    return "a text of " + std::to_string(value.get_ref<const std::string&>().size()) + " bytes";
  }
  return value.dump(-1, ' ', /*ensure_ascii=*/true);
}

// 1e-05 and 100000 rather than six decimals.
std::string shown(double value) {
  return nlohmann::json(value).dump();
}

// No parameter is deeper than a message's part; without an end to it, a body of brackets costs seconds and
// a gigabyte before its first member is looked at.
constexpr int kDeepest = 64;

struct TooDeep {};

bool check_depth(int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
  return depth <= kDeepest ? true : throw TooDeep();
}

}  // namespace

BodyReader::BodyReader(std::string_view body) {
  try {
    body_ = nlohmann::json::parse(body, check_depth);
  } catch (const TooDeep&) {
    fail("", "the body is nested more than " + std::to_string(kDeepest) + " deep");
    return;
  } catch (const nlohmann::json::parse_error& error) {
    fail("", "the body is not JSON: error at byte " + std::to_string(error.byte));
    return;
  } catch (const nlohmann::json::exception&) {  // a number that no double holds
    fail("", "the body has a number out of range");
    return;
  }
  if (!body_.is_object()) fail("", "the body is " + shown(body_) + ", expected an object");
}

void BodyReader::fail(const char* name, std::string message, const char* code) {
  if (error_) return;
  error_.emplace();
  error_->message = std::move(message);
  error_->param = name;
  error_->code = code;
}

const nlohmann::json* BodyReader::find(const char* name) {
  known_.insert(name);
  if (error_) return nullptr;
  const auto member = body_.find(name);
  return member == body_.end() || member->is_null() ? nullptr : &*member;
}

double BodyReader::number(const char* name, double otherwise, double low, double high) {
  const nlohmann::json* const value = find(name);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (number >= low && number <= high) return number;
  fail(name, std::string(name) + " is " + shown(*value) + ", expected a number from " + shown(low) +
                 " to " + shown(high));
  return otherwise;
}

std::optional<std::int64_t> BodyReader::integer(const char* name, std::int64_t low,
                                                std::int64_t high) {
  const nlohmann::json* const value = find(name);
  if (value == nullptr) return {};
  // A positive number above 2^63 would turn negative on the way to a signed one.
  const bool fits = value->is_number_unsigned()
                        ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                        : value->is_number_integer();
  if (fits && value->get<std::int64_t>() >= low && value->get<std::int64_t>() <= high) {
    return value->get<std::int64_t>();
  }
  fail(name, std::string(name) + " is " + shown(*value) + ", expected a whole number from " +
                 std::to_string(low) + " to " + std::to_string(high));
  return {};
}

bool BodyReader::boolean(const char* name, bool otherwise) {
  const nlohmann::json* const value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, std::string(name) + " is " + shown(*value) + ", expected true or false");
  return otherwise;
}

std::optional<std::string> BodyReader::text(const char* name) {
  const nlohmann::json* const value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  fail(name, std::string(name) + " is " + shown(*value) + ", expected a text");
  return {};
}

void BodyReader::only(const char* name, const nlohmann::json& served) {
  const nlohmann::json* const value = find(name);
  if (value == nullptr || *value == served) return;
  fail(name,
       std::string(name) + " is " + shown(*value) + ", and only " + served.dump() + " is served",
       "unsupported_value");
}

void BodyReader::refuse_others() {
  if (error_) return;
  for (const auto& member : body_.items()) {
    if (known_.find(member.key()) != known_.end() || member.value().is_null()) continue;
    const std::string name = member.key().substr(0, 60);
    fail(name.c_str(),
         "there is no parameter " +
             nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
         "unknown_parameter");
    return;
  }
}

}  // namespace cachalot::llama

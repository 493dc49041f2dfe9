#include "reference_json.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::llama {
namespace {

using nlohmann::json;

constexpr std::size_t kHashDigits = 32, kDigestDigits = 64, kMostAddresses = 16, kMostBytes = 200;

// Of an OfferId or a BlockHash.
template <class T>
std::string hex(const T& name) {
  char text[kHashDigits + 1];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, name.high, name.low);
  return text;
}

std::uint64_t number_of(std::string_view digits) {
  std::uint64_t number = 0;
  for (const char c : digits)
    number = number << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return number;
}

// Reads members, and remembers whether one had another form.
class Reader {
 public:
  explicit Reader(const json& value) : value_(value), is_ok_(value.is_object()) {}

  bool is_ok() const { return is_ok_; }

  const json* find(const char* name) {
    const auto member = is_ok_ ? value_.find(name) : value_.end();
    if (!is_ok_ || member == value_.end()) return is_ok_ = false, nullptr;
    return &*member;
  }

  // Printable, so that it may be logged.
  std::string text(const char* name, std::size_t most = kMostBytes) {
    const json* const member = find(name);
    return member == nullptr ? std::string() : text_of(*member, most);
  }

  std::string text_of(const json& value, std::size_t most) {
    const std::string* const text =
        value.is_string() ? &value.get_ref<const std::string&>() : nullptr;
    const auto is_printable = [](char c) { return c > ' ' && c < 127; };
    const bool fits = text != nullptr && !text->empty() && text->size() <= most &&
                      std::all_of(text->begin(), text->end(), is_printable);
    if (!fits) is_ok_ = false;
    return fits ? *text : std::string();
  }

  std::string digits(const char* name, std::size_t count) {
    std::string text = this->text(name, count);
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (text.size() != count || !std::all_of(text.begin(), text.end(), is_digit)) is_ok_ = false;
    return text;
  }

  template <class T>
  T name_of(const char* name) {
    const std::string text = digits(name, kHashDigits);
    T value;
    if (!is_ok_) return value;
    value.high = number_of(std::string_view(text).substr(0, kHashDigits / 2));
    value.low = number_of(std::string_view(text).substr(kHashDigits / 2));
    return value;
  }

  std::uint64_t number(const char* name, std::uint64_t low, std::uint64_t high) {
    const json* const member = find(name);
    const bool fits = member != nullptr && member->is_number_unsigned() &&
                      member->get<std::uint64_t>() >= low && member->get<std::uint64_t>() <= high;
    if (!fits) is_ok_ = false;
    return fits ? member->get<std::uint64_t>() : 0;
  }

 private:
  const json& value_;
  bool is_ok_;
};

std::vector<std::string> addresses_of(Reader& reader) {
  const json* const ranks = reader.find("addresses");
  const bool is_list =
      ranks != nullptr && ranks->is_array() && ranks->size() == 1 && ranks->front().is_array();
  if (!is_list || ranks->front().size() > kMostAddresses) return {};
  std::vector<std::string> addresses;
  for (const json& address : ranks->front())
    addresses.push_back(reader.text_of(address, kMostBytes));
  return addresses;
}

}  // namespace

nlohmann::ordered_json reference_json(const PromptReference& reference) {
  return {{"instance", reference.kv.instance},
          {"id", hex(reference.kv.id)},
          {"tokens", reference.kv.tokens},
          {"tp_size", reference.kv.shape.tp_size},
          {"pp_size", reference.kv.shape.pp_size},
          {"addresses", reference.kv.addresses},
          {"block_tokens", reference.identity.block_tokens},
          {"last_block", hex(reference.last_block)},
          {"model", reference.identity.model},
          {"kv_types", reference.identity.kv_types},
          {"fingerprint", reference.identity.fingerprint}};
}

std::optional<PromptReference> reference_of(const json& value) {
  constexpr std::uint64_t kMostTokens = 1u << 30;
  Reader reader(value);
  PromptReference reference;
  reference.kv.instance = reader.text("instance");
  reference.kv.id = reader.name_of<OfferId>("id");
  reference.kv.tokens = reader.number("tokens", 1, kMostTokens);
  reader.number("tp_size", 1, 1);
  reader.number("pp_size", 1, 1);
  reference.kv.addresses = {addresses_of(reader)};
  reference.identity.block_tokens =
      static_cast<std::uint32_t>(reader.number("block_tokens", 1, kMostTokens));
  reference.last_block = reader.name_of<BlockHash>("last_block");
  reference.identity.model = reader.digits("model", kDigestDigits);
  reference.identity.kv_types = reader.text("kv_types");
  reference.identity.fingerprint = reader.digits("fingerprint", kDigestDigits);
  if (!reader.is_ok() || reference.kv.addresses.front().empty()) return {};
  return reference;
}

}  // namespace cachalot::llama

#include "settings.h"

#include <charconv>
#include <cinttypes>
#include <cstring>
#include <string>

#include "../prefetch_policy.h"

namespace cachalot::llama {
namespace {

Result<std::uint64_t> whole_number(const char* name, const char* text, std::uint64_t otherwise,
                                   std::uint64_t least, std::uint64_t most) {
  if (text == nullptr) return otherwise;
  const char* const end = text + std::strlen(text);
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    return Error::make(Code::kInvalidArgument,
                       "%s is \"%.40s\", expected a whole number from %" PRIu64 " to %" PRIu64,
                       name, text, least, most);
  }
  return value;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

Result<std::optional<Settings>> read_settings(const std::function<const char*(const char*)>& get) {
  const char* const pool = get("CACHALOT_POOL");
  if (pool == nullptr || *pool == 0) return std::optional<Settings>();
  Settings settings;
  settings.cache.pool = split_at_commas(pool);
  for (const std::string& path : settings.cache.pool) {
    if (path.empty())
      return Error::make(Code::kInvalidArgument,
                         "CACHALOT_POOL is \"%.100s\", expected paths separated by commas", pool);
  }
  const auto number = [&](const char* name, std::uint64_t otherwise, std::uint64_t least,
                          std::uint64_t most) {
    return whole_number(name, get(name), otherwise, least, most);
  };
  CACHALOT_TRY_ASSIGN(const std::uint64_t block_tokens,
                      number("CACHALOT_BLOCK_TOKENS", 64, 2, 4096));
  CACHALOT_TRY_ASSIGN(const std::uint64_t host, number("CACHALOT_HOST", 0, 0, 1023));
  CACHALOT_TRY_ASSIGN(const std::uint64_t wait_ms,
                      number("CACHALOT_FLIGHT_WAIT_MS", 30'000, 0, 3'600'000));
  CACHALOT_TRY_ASSIGN(const std::uint64_t verbose, number("CACHALOT_VERBOSE", 0, 0, 1));
  settings.cache.block_tokens = static_cast<std::uint32_t>(block_tokens);
  settings.cache.host = static_cast<std::uint32_t>(host);
  settings.cache.flight_wait_ns = wait_ms * 1'000'000;
  if (const char* const policy = get("CACHALOT_PREFETCH_POLICY")) {
    if (std::strcmp(policy, "off") == 0) {
      settings.cache.prefetch.reset();
    } else {
      CACHALOT_TRY_ASSIGN(settings.cache.prefetch->stop,
                          parse_prefetch_policy("CACHALOT_PREFETCH_POLICY", policy));
    }
  }
  settings.is_verbose = verbose != 0;
  if (const char* const salt = get("CACHALOT_SALT")) settings.cache.origin.salt = salt;
  return std::optional<Settings>(std::move(settings));
}

}  // namespace cachalot::llama

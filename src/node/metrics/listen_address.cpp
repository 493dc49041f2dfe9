#include "node/metrics/listen_address.h"

#include <algorithm>
#include <cstddef>

namespace cachalot::node {
namespace {

constexpr std::size_t kMostHostBytes = 253;  // of a name in the DNS

bool is_port(std::string_view text) {
  if (text.empty() || text.size() > 5) return false;
  unsigned port = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return false;
    port = port * 10 + static_cast<unsigned>(digit - '0');
  }
  return port <= 65535;
}

bool is_host(std::string_view text, bool is_bracketed) {
  return text.size() <= kMostHostBytes && std::all_of(text.begin(), text.end(), [&](char c) {
           const bool is_word =
               (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
           return is_word || c == '.' || c == '-' || c == '_' ||
                  (is_bracketed && (c == ':' || c == '%'));
         });
}

}  // namespace

std::string ListenAddress::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<ListenAddress> parse_listen_address(const char* name, std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const std::string_view port =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  std::string_view host = text.substr(0, std::min(colon, text.size()));
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (!is_port(port) || !is_host(host, is_bracketed)) {
    return Error::make(Code::kInvalidArgument,
                       "%s: \"%.80s\", expected HOST:PORT, [IPv6]:PORT or :PORT, with a port from "
                       "0 to 65535",
                       name, std::string(text).c_str());
  }
  ListenAddress address;
  address.host = host;
  for (const char digit : port)
    address.port = static_cast<std::uint16_t>(address.port * 10 + (digit - '0'));
  return address;
}

}  // namespace cachalot::node

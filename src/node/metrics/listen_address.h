// Where a server listens, as a flag says it: HOST:PORT, [IPv6]:PORT, or :PORT for all addresses of the machine.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::node {

struct ListenAddress {
  std::string host;        // "": all addresses
  std::uint16_t port = 0;  // 0: a free one

  // As it was written.
  std::string text() const;
};

// @errors kInvalidArgument: not of one of these forms; the message begins with `name`
Result<ListenAddress> parse_listen_address(const char* name, std::string_view text);

}  // namespace cachalot::node

// The head of an HTTP/1 request: what a server of short answers needs of it.
//
// @threads any
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cachalot::node {

struct HttpRequest {
  std::string path;      // of the target, without a query
  std::string accept;    // all values of the header, with commas between them
  bool is_head = false;  // wants no body
};

struct ParsedRequest {
  int status = 200;  // else the error to answer: 400, 405, 413 or 505
  HttpRequest request = {};
};

// Bytes up to the end of a head, which is an empty line. Nothing: the end has not come yet.
std::optional<std::size_t> find_end_of_head(std::string_view received);

// GET and HEAD without a body.
ParsedRequest parse_request(std::string_view head);

}  // namespace cachalot::node

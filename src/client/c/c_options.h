// What callers of the C ABI describe by structs, as the structs of client.h.
#pragma once

#include <cachalot/c.h>
#include <cachalot/client.h>

#include <string>

namespace cachalot::client {

// A string that may be null.
std::string text(const char* given, const char* otherwise = "");

// @errors kInvalidArgument: null, a size or a field that is none
Result<ClientOptions> client_options_of(const cachalot_client_options* given);
Result<PagedCache> paged_cache_of(const cachalot_cache* given);

}  // namespace cachalot::client

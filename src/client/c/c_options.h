// Converts the structs of the C ABI to those of client.h.
#pragma once

#include <cachalot/c.h>
#include <cachalot/client.h>

#include <string>

namespace cachalot::client {

// `otherwise` if `given` is null.
std::string text(const char* given, const char* otherwise = "");

// @errors kInvalidArgument: null; an invalid struct_size or field
Result<ClientOptions> client_options_of(const cachalot_client_options* given);
Result<PagedCache> paged_cache_of(const cachalot_cache* given);

}  // namespace cachalot::client

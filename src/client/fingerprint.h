// The namespace of a client's blocks as text: everything that their bytes depend on.
#pragma once

#include <cachalot/client.h>

#include <string>

namespace cachalot::client {

// Two clients have the same fingerprint only if model, salt, geometry, block order and hash algorithm are
// equal. Each part is preceded by its length, so different parts never produce the same text.
std::string fingerprint_of(const ClientOptions& options);

// The same for people: only the model and the geometry. A salt would be readable by all processes that map the pool.
std::string name_of(const ClientOptions& options);

}  // namespace cachalot::client

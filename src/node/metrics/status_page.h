// The page at / of the metrics' address: /status of this keeper, for people.
#pragma once

namespace cachalot::node {

// HTML with its style and script inside: it asks for /status every two seconds, and for nothing else.
extern const char* const kStatusPage;

}  // namespace cachalot::node

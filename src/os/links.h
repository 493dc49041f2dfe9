// Symbolic links, by name.
#pragma once

#include <string>

namespace cachalot::os {

// The file that a name stands for, through all links at its end, whether it is there or not; the name itself
// where it is no link. For a caller that is about to make the file: links as /dev/stdout is one do not lead to a name.
std::string follow_links(const std::string& file);

}  // namespace cachalot::os

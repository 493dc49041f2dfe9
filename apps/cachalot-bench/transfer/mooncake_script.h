// mooncake_rate.py: CMake puts its text into the program, which can then be anywhere.
#pragma once

namespace cachalot::apps::bench {

extern const char* const kMooncakeScript;

}  // namespace cachalot::apps::bench

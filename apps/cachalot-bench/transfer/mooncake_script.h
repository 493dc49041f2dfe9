// mooncake_rate.py and mooncake_store.py: CMake puts their texts into the program, which can then be anywhere.
#pragma once

namespace cachalot::apps::bench {

extern const char* const kMooncakeEngineScript;
extern const char* const kMooncakeStoreScript;

}  // namespace cachalot::apps::bench

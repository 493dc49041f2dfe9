// `cachalot top`.
#pragma once

#include "command.h"

namespace cachalot::apps {

void add_top(CLI::App& app, Chosen& chosen);

}  // namespace cachalot::apps

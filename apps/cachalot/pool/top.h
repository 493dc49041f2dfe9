// `cachalot top`.
#pragma once

#include "command.h"

namespace cachalot::apps {

void add_top(Command& app, Chosen& chosen);

}  // namespace cachalot::apps

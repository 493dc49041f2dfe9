// --model: the same words for every command that takes one.
#pragma once

#include <string>

#include "flags.h"

namespace cachalot::apps {

// @param text  what the command takes from the model. The value is checked, and the path of a
// config.json becomes its dimensions: geometry::parse_model() takes it.
Flag* add_model_flag(Command& command, std::string& model, const std::string& text);

}  // namespace cachalot::apps

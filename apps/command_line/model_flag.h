// --model: the same words for every command that takes one.
#pragma once

#include <string>

#include "flags.h"
#include "model_config.h"

namespace cachalot::apps {

// @param text    what the command takes from the model. The value is checked, and the path of a
//                config.json becomes its dimensions: geometry::parse_model() takes it.
// @param layers  of a config.json
Flag* add_model_flag(Command& command, std::string& model, LayersOf layers,
                     const std::string& text);

}  // namespace cachalot::apps

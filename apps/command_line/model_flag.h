// --model: the same words for every command that takes one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cachalot::apps {

// @param text  what the command takes from the model. The value is checked, and the path of a
// config.json becomes its dimensions: geometry::parse_model() takes it.
CLI::Option* add_model_flag(CLI::App& command, std::string& model, const std::string& text);

}  // namespace cachalot::apps

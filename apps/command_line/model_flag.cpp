#include "model_flag.h"

#include <algorithm>

#include "geometry/model.h"

namespace cachalot::apps {
namespace {

// A path becomes dimensions. The library's errors are short: of an unknown name the command line gets all that are known.
std::string check_model(std::string& text, LayersOf layers) {
  if (is_model_path(text)) {
    constexpr const char* kDtype = ",dtype=";
    const std::size_t at = std::min(text.rfind(kDtype), text.size());
    const std::string dtype = text.substr(at);
    Result<std::string> dimensions = read_model_config(text.substr(0, at), layers);
    if (!dimensions) return dimensions.error().message;
    text = dtype.empty() ? *dimensions : dimensions->substr(0, dimensions->rfind(kDtype)) + dtype;
  }
  const std::string name = text.substr(0, text.find(','));
  if (name.find('=') == std::string::npos && !geometry::find_preset(name)) {
    return "\"" + name.substr(0, 60) + "\" is unknown, expected one of " +
           geometry::model_choices() + ", or a path with a slash: of a config.json or its folder";
  }
  const Result<geometry::Model> model = geometry::parse_model(text);
  return model ? "" : model.error().message;
}

}  // namespace

Flag* add_model_flag(Command& command, std::string& model, LayersOf layers,
                     const std::string& text) {
  return command
      .add_option("--model", model,
                  text + "; a name (" + geometry::model_choices() +
                      "), or a path with a slash: of a config.json, or of the folder that has it, "
                      "and ,dtype=f8 if the engine stores other numbers")
      ->type_name("NAME|DIMENSIONS|PATH")
      ->transform(
          Validator([layers](std::string& given) { return check_model(given, layers); }, ""));
}

}  // namespace cachalot::apps

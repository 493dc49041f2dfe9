#include "model_flag.h"

#include "geometry/model.h"

namespace cachalot::apps {
namespace {

// The library's errors are short: of an unknown name the command line gets all that are known.
std::string check_model(const std::string& text) {
  const std::string name = text.substr(0, text.find(','));
  if (name.find('=') == std::string::npos && !geometry::find_preset(name)) {
    return "\"" + name.substr(0, 60) + "\" is unknown, expected one of " +
           geometry::model_choices();
  }
  const Result<geometry::Model> model = geometry::parse_model(text);
  return model ? "" : model.error().message;
}

}  // namespace

Flag* add_model_flag(Command& command, std::string& model, const std::string& text) {
  return command
      .add_option("--model", model, text + "; a name (" + geometry::model_choices() + ")")
      ->type_name("NAME|DIMENSIONS")
      ->check(Validator(check_model, ""));
}

}  // namespace cachalot::apps

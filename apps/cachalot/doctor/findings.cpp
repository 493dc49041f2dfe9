#include "findings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/words.h"

namespace cachalot::apps {
namespace {

std::ptrdiff_t how_many(const Findings& findings, Health health) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& one) { return one.health == health; });
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

const char* health_name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kFault:
      return "fault";
  }
  return "?";
}

nlohmann::json findings_json(const Findings& findings) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& one : findings) {
    checks.push_back({{"check", one.check},
                      {"state", health_name(one.health)},
                      {"found", one.found},
                      {"advice", one.advice}});
  }
  return {{"faults", how_many(findings, Health::kFault)},
          {"warnings", how_many(findings, Health::kWarning)},
          {"checks", checks}};
}

std::string findings_text(const Findings& findings) {
  constexpr std::size_t kStateWidth = 9, kNameWidth = 16;
  std::string text;
  for (const Finding& one : findings) {
    text += padded(health_name(one.health), kStateWidth) + padded(one.check, kNameWidth) +
            base::printable(one.found) + "\n";
    if (!one.advice.empty())
      text +=
          std::string(kStateWidth + kNameWidth, ' ') + "-> " + base::printable(one.advice) + "\n";
  }
  return text + "faults: " + std::to_string(how_many(findings, Health::kFault)) +
         ", warnings: " + std::to_string(how_many(findings, Health::kWarning)) + "\n";
}

}  // namespace cachalot::apps

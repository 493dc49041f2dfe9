// What `cachalot doctor` finds: a line for each thing that it looked at.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace cachalot::apps {

enum class Health { kOk, kWarning, kFault };

struct Finding {
  std::string check;  // what was looked at: a name that scripts know
  Health health = Health::kOk;
  std::string found;
  std::string advice = {};  // what to do, or to know
};

using Findings = std::vector<Finding>;

// "ok", "warning", "fault"
const char* health_name(Health health);

// {"faults", "warnings", "checks": [{"check", "state", "found", "advice"}]}
nlohmann::json findings_json(const Findings& findings);

// For people: a line each, and one more for what there is to do.
std::string findings_text(const Findings& findings);

}  // namespace cachalot::apps

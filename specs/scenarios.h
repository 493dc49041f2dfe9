// The configurations that are explored, and the rules that can be broken in them.
#pragma once

#include "model.h"

namespace cachalot::specs {

const std::vector<Scenario>& scenarios();
const Scenario* find_scenario(const char* name);

struct VariantInfo {
  Variant variant;
  const char* name;
  const char* scenario;    // the one it is noticed in
  bool is_noticed = true;  // false: the rule is not needed within the bounds of the model
};
const std::vector<VariantInfo>& variants();
const VariantInfo* find_variant(const char* name);

}  // namespace cachalot::specs

// A reference to a prompt's KV as JSON: kv_transfer_params.cachalot_reference.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "../prompt_reference.h"

namespace cachalot::llama {

inline constexpr const char* kReferenceName = "cachalot_reference";

nlohmann::ordered_json reference_json(const PromptReference& reference);

// @return nothing: it has another form. It comes through a proxy, so anything may be there.
std::optional<PromptReference> reference_of(const nlohmann::json& value);

}  // namespace cachalot::llama

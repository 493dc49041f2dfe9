// What the names of a pool's namespaces tell: how much of a block each fills, and what two engines have otherwise that
// share nothing.
//
// Names are text for operators (pool::NamespaceName): of one that is not Cachalot's own form nothing is said.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pool/pool_state.h"

namespace cachalot::apps {

// Below it a pool wastes memory.
inline constexpr double kLeastFilled = 0.9;

// Bytes of a block of this namespace, by the geometry in its name.
std::optional<std::uint64_t> block_bytes_of(const std::string& name);

// The weights that a namespace is of; they may be of any engine.
std::string model_of(const std::string& name);

// Parts of their names in which two namespaces differ, as "kv (fp8, auto)". None for ranks, and for layers that keep a state,
// of one engine.
std::vector<std::string> differences(const std::string& one, const std::string& other);

// [{"id", "digest", "name", "model", "live_blocks", "quota_blocks", …}], with "block_bytes" where the name tells it, and
// "differs_from" {"id", "in"}: the most similar other namespace of the same model.
nlohmann::json describe_namespaces(const pool::PoolState& state);

// One line for each that fills less than kLeastFilled of a block.
std::vector<std::string> fill_warnings(const nlohmann::json& namespaces,
                                       std::uint64_t pool_block_bytes);

}  // namespace cachalot::apps

#include "namespace_report.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "block_hash/block_hash.h"
#include "geometry/kv_geometry.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;
using Parts = std::map<std::string, std::string>;

constexpr const char* kGeometry = " | kv1 ";

// KEY=VALUE of the model, or of the geometry behind it.
Parts parts_of(const std::string& text, const std::string& prefix) {
  Parts parts;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos)
      parts[prefix + word.substr(0, equals)] = word.substr(equals + 1);
  }
  return parts;
}

// The words without "=" name the engine ("vllm/1 model=…"), or the model where nothing else does.
Parts all_parts_of(const std::string& name) {
  const std::size_t at = std::min(name.find(kGeometry), name.size());
  Parts parts = parts_of(name.substr(0, at), "");
  std::string plain;
  std::istringstream words(name.substr(0, at));
  for (std::string word; words >> word;) {
    if (word.find('=') == std::string::npos) plain += (plain.empty() ? "" : " ") + word;
  }
  parts.emplace(parts.contains("model") ? "engine" : "model", plain);
  parts.merge(parts_of(name.substr(at), "stored "));
  return parts;
}

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > 0xffffffff) return {};
  return number;
}

std::optional<std::uint64_t> number_of_part(const Parts& parts, const char* name) {
  const auto found = parts.find(name);
  return found == parts.end() ? std::nullopt : number_in(found->second);
}

// Numbers of one token in one layer.
std::optional<std::uint64_t> width_of(const Parts& parts) {
  const auto latent = number_of_part(parts, "latent"), rope = number_of_part(parts, "rope");
  if (latent && rope) return *latent + *rope;
  const auto heads = number_of_part(parts, "heads"), head_dim = number_of_part(parts, "head_dim");
  if (!heads || !head_dim) return {};
  // "any/4": ranks share, and a block has the heads of one of so many groups.
  const auto shard = parts.find("shard");
  std::uint64_t groups = 1;
  if (shard != parts.end() && shard->second.starts_with("any/"))
    groups = number_in(shard->second.substr(4)).value_or(1);
  return groups == 0 ? *heads * *head_dim * 2 : *heads / groups * *head_dim * 2;
}

std::string value_of(const Parts& parts, const std::string& name) {
  const auto at = parts.find(name);
  return at == parts.end() ? "none" : at->second;
}

// Ranks of one engine ("0/2" and "1/2") have namespaces of their own, and so have its layers that keep a state.
bool are_of_one_engine(Parts& here, Parts& there) {
  bool are_ranks = false;
  for (const char* place : {"stored shard", "stored stage"}) {
    const std::string one = value_of(here, place), other = value_of(there, place);
    if (one.substr(one.find('/') + 1) != other.substr(other.find('/') + 1)) continue;
    are_ranks |= one != other;
    for (Parts* parts : {&here, &there}) parts->erase(place);
  }
  if (are_ranks) {
    for (Parts* parts : {&here, &there}) {
      parts->erase("layers");  // their names
      parts->erase("stored layers");
    }
  }
  if (value_of(here, "state") != value_of(there, "state")) {
    for (Parts* parts : {&here, &there}) {
      parts->erase("state");
      std::erase_if(*parts, [](const auto& part) { return part.first.starts_with("stored "); });
    }
  }
  return here == there;
}

}  // namespace

std::optional<std::uint64_t> block_bytes_of(const std::string& name) {
  const std::size_t at = name.find(kGeometry);
  if (at == std::string::npos) return {};
  const Parts parts = parts_of(name.substr(at), "");
  const auto layers = number_of_part(parts, "layers"),
             tokens = number_of_part(parts, "block_tokens");
  const auto width = width_of(parts);
  const auto dtype = parts.find("dtype");
  if (!layers || !tokens || !width || dtype == parts.end()) return {};
  const Result<geometry::DType> parsed = geometry::parse_dtype(dtype->second);
  if (!parsed) return {};
  std::uint64_t bytes = geometry::dtype_bytes(*parsed);
  for (const std::uint64_t factor : {*layers, *tokens, *width}) {
    if (__builtin_mul_overflow(bytes, factor, &bytes)) return {};
  }
  return bytes;
}

std::string model_of(const std::string& name) {
  return value_of(all_parts_of(name), "model");
}

std::vector<std::string> differences(const std::string& one, const std::string& other) {
  Parts here = all_parts_of(one), there = all_parts_of(other);
  if (are_of_one_engine(here, there)) return {};
  Parts all = here;
  all.insert(there.begin(), there.end());
  std::vector<std::string> found;
  for (const auto& [name, ignored] : all) {
    if (value_of(here, name) == value_of(there, name)) continue;
    found.push_back(name + " (" + value_of(here, name) + ", " + value_of(there, name) + ")");
  }
  return found;
}

Json describe_namespaces(const pool::PoolState& state) {
  const std::vector<pool::NamespaceName> namespaces = state.read_namespaces();
  std::vector<std::string> models;
  for (const pool::NamespaceName& one : namespaces) models.push_back(model_of(one.name));
  Json described = Json::array();
  for (std::size_t i = 0; i < namespaces.size(); ++i) {
    const pool::NamespaceName& one = namespaces[i];
    Json all = {{"id", one.id}, {"digest", block_hash::to_hex(one.digest)}, {"name", one.name}};
    const pool::NamespaceCounters counters = state.read_namespace_counters(one.id);
    all["live_blocks"] = counters.live_blocks;
    all["quota_blocks"] = counters.quota_blocks;
    all["committed_blocks"] = counters.committed_blocks;
    all["evicted_blocks"] = counters.evicted_blocks;
    if (const auto bytes = block_bytes_of(one.name)) all["block_bytes"] = *bytes;
    all["model"] = models[i];
    std::size_t least = ~std::size_t{0};
    for (std::size_t j = 0; j < namespaces.size(); ++j) {
      if (models[j] != models[i]) continue;  // it would share no block in any case
      const pool::NamespaceName& other = namespaces[j];
      std::vector<std::string> parts = differences(one.name, other.name);
      if (j != i && one.name == other.name)
        parts = {"what names do not show (salt, hash, block order)"};
      if (parts.empty() || parts.size() >= least) continue;
      least = parts.size();
      all["differs_from"] = {{"id", other.id}, {"in", parts}};
    }
    described.push_back(std::move(all));
  }
  return described;
}

std::vector<std::string> fill_warnings(const Json& namespaces, std::uint64_t pool_block_bytes) {
  std::vector<std::string> warnings;
  for (const Json& one : namespaces) {
    if (!one.contains("block_bytes")) continue;
    const auto bytes = one["block_bytes"].get<std::uint64_t>();
    const double filled = static_cast<double>(bytes) / static_cast<double>(pool_block_bytes);
    if (filled >= kLeastFilled) continue;
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.0f %%", 100 * filled);
    warnings.push_back("namespace " + one["id"].dump() + " fills " + percent +
                       " of a block: its own pool would have --block-bytes " +
                       std::to_string((bytes + 63) / 64 * 64));
  }
  return warnings;
}

}  // namespace cachalot::apps

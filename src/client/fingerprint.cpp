#include "client/fingerprint.h"

#include "block_hash/block_hasher.h"

namespace cachalot::client {
namespace {

// Increase it when the same options start to mean other bytes.
constexpr const char* kVersion = "cachalot-kv-1";

}  // namespace

std::string fingerprint_of(const ClientOptions& options) {
  std::string text;
  for (const std::string& part :
       {std::string(kVersion), options.model, options.salt,
        options.geometry.fingerprint(options.share_tp), options.block_order,
        std::string(block_hash::hash_algorithm_name(options.hash)), options.python_hash_seed}) {
    text += std::to_string(part.size()) + ':' + part + ';';
  }
  return text;
}

std::string name_of(const ClientOptions& options) {
  return options.model + " | " + options.geometry.fingerprint(options.share_tp);
}

}  // namespace cachalot::client

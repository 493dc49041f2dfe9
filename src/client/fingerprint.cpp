#include "client/fingerprint.h"

namespace cachalot::client {
namespace {

// Increase it when the same options start to mean other bytes.
constexpr const char* kVersion = "cachalot-kv-1";

const char* name_of(HashAlgorithm algorithm) {
  switch (algorithm) {
    case HashAlgorithm::kXxh3:
      return "xxh3_128";
    case HashAlgorithm::kSha256Cbor:
      return "sha256_cbor";
    case HashAlgorithm::kXxhashCbor:
      return "xxhash_cbor";
  }
  return "unknown";
}

}  // namespace

std::string fingerprint_of(const ClientOptions& options) {
  std::string text;
  for (const std::string& part :
       {std::string(kVersion), options.model, options.salt, options.geometry.fingerprint(),
        options.block_order, std::string(name_of(options.hash)), options.python_hash_seed}) {
    text += std::to_string(part.size()) + ':' + part + ';';
  }
  return text;
}

}  // namespace cachalot::client

#include "transfer/registry/record_tag.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

namespace cachalot::transfer {
namespace {

constexpr const char* kTagFact = "cluster-tag";

// @param record  without a tag
Result<std::string> tag_of(const os::SecretKey& key, const PeerRecord& record) {
  const std::string text = "cachalot-record 1 " + encode(record);
  std::array<unsigned char, 32> tag{};
  unsigned int bytes = 0;
  if (HMAC(EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), tag.data(),
           &bytes) == nullptr ||
      bytes != tag.size())
    return Error::make(Code::kInternal, "registry: HMAC-SHA256 failed");
  std::string hex;
  for (const unsigned char byte : tag) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace

Status add_tag(const os::SecretKey& key, PeerRecord& record) {
  CACHALOT_TRY_ASSIGN(std::string tag, tag_of(key, record));
  record.facts[kTagFact] = std::move(tag);
  return record.check();
}

Status check_tag(const os::SecretKey& key, PeerRecord& record) {
  const auto found = record.facts.find(kTagFact);
  const std::string given = found == record.facts.end() ? "" : found->second;
  record.facts.erase(kTagFact);
  CACHALOT_TRY_ASSIGN(const std::string expected, tag_of(key, record));
  if (given.size() == expected.size() &&
      CRYPTO_memcmp(given.data(), expected.data(), given.size()) == 0)
    return {};
  return Error::make(Code::kPermission,
                     "peer \"%.60s\": its record has %s, expected "
                     "the one of this host: give all hosts the same cluster key file",
                     record.name.c_str(),
                     given.empty() ? "no tag of a cluster key" : "the tag of another cluster key");
}

}  // namespace cachalot::transfer

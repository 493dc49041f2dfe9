#include "transfer/handover/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "transfer/link/frame.h"

namespace cachalot::transfer {
namespace {

constexpr std::string_view kNameLabel = "cachalot offer", kProofLabel = "cachalot proof";

Proof hmac(const OfferId& id, std::span<const std::byte> bytes) {
  const std::uint64_t key[] = {id.high, id.low};
  Proof proof = {};
  unsigned size = 0;
  const unsigned char* const done =
      HMAC(EVP_sha256(), key, sizeof key, reinterpret_cast<const unsigned char*>(bytes.data()),
           bytes.size(), reinterpret_cast<unsigned char*>(proof.data()), &size);
  CACHALOT_CHECK(done != nullptr &&
                 size == sizeof proof);  // no memory, or an OpenSSL without SHA-256
  return proof;
}

}  // namespace

OfferName name_of(const OfferId& id) {
  const Proof whole = hmac(id, BodyWriter().text(kNameLabel).take());
  return {whole[0], whole[1]};
}

Proof prove(const OfferId& id, const Party& from, const Party& to, const Nonce& nonce,
            std::span<const std::byte> message) {
  BodyWriter body;
  body.text(kProofLabel).text(from.name).word(from.incarnation).text(to.name).word(to.incarnation);
  body.word(nonce.high).word(nonce.low).bytes(message);
  return hmac(id, body.take());
}

bool equals(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), sizeof(Proof)) == 0;
}

}  // namespace cachalot::transfer

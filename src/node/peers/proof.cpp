#include "node/peers/proof.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>

#include "transfer/link/frame.h"

namespace cachalot::node {

Result<ChallengeMessage> make_challenge() {
  ChallengeMessage challenge;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(challenge.nonce.data()),
                 sizeof challenge.nonce) == 1)
    return challenge;
  return Error::make(Code::kInternal, "peers: no random numbers for a challenge");
}

Result<ProofMessage> prove(const os::SecretKey& key, const ChallengeMessage& challenge,
                           const PeerIdentity& prover, const PeerIdentity& verifier, Side side) {
  const std::vector<std::byte> text = transfer::BodyWriter()
                                          .text("cachalot-peers 1")
                                          .words(challenge.nonce)
                                          .text(prover.name)
                                          .word(prover.incarnation)
                                          .text(verifier.name)
                                          .word(verifier.incarnation)
                                          .word(static_cast<std::uint64_t>(side))
                                          .take();
  ProofMessage proof;
  unsigned int bytes = 0;
  if (HMAC(EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(proof.proof.data()), &bytes) != nullptr &&
      bytes == sizeof proof.proof)
    return proof;
  return Error::make(Code::kInternal, "peers: HMAC-SHA256 failed");
}

bool is_equal(const ProofMessage& a, const ProofMessage& b) {
  return CRYPTO_memcmp(a.proof.data(), b.proof.data(), sizeof a.proof) == 0;
}

}  // namespace cachalot::node

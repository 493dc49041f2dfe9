#include "storage/encrypted.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "block_hash/block_hash.h"
#include "storage/aligned_bytes.h"

namespace cachalot::storage {
namespace {

constexpr std::size_t kAuthFirst = offsetof(ObjectHead, key),
                      kAuthLast = offsetof(ObjectHead, seal);
constexpr std::uint64_t kMostPerUpdate = 1u << 30;  // OpenSSL counts in int

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;

// One object's encryption or decryption: begin(), the pieces, end().
class ObjectCipher {
 public:
  enum class Way : int { kDecrypt = 0, kEncrypt = 1 };

  ObjectCipher(const StorageKey& key, const ObjectHead& head, Way way)
      : context_(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free), way_(way) {
    unsigned char object_key[32];
    unsigned int bytes = 0;
    works_ = context_ != nullptr &&
             HMAC(EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()),
                  reinterpret_cast<const unsigned char*>(&head.key), sizeof head.key, object_key,
                  &bytes) != nullptr &&
             EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, object_key, head.nonce,
                               static_cast<int>(way)) == 1;
    OPENSSL_cleanse(object_key, sizeof object_key);
    int done = 0;
    works_ = works_ && EVP_CipherUpdate(context_.get(), nullptr, &done,
                                        reinterpret_cast<const unsigned char*>(&head) + kAuthFirst,
                                        static_cast<int>(kAuthLast - kAuthFirst)) == 1;
  }

  // `to` may be `from`.
  void update(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    while (bytes != 0 && works_) {
      const int some = static_cast<int>(std::min(bytes, kMostPerUpdate));
      int done = 0;
      works_ = EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(to), &done,
                                reinterpret_cast<const unsigned char*>(from), some) == 1;
      to += some;
      from += some;
      bytes -= static_cast<std::uint64_t>(some);
    }
  }

  // Encrypting: writes the tag. Decrypting: false if the tag is another one.
  bool end(unsigned char (&tag)[16]) {
    unsigned char rest[16];
    int done = 0;
    if (way_ == Way::kDecrypt) {
      return works_ &&
             EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, sizeof tag, tag) == 1 &&
             EVP_CipherFinal_ex(context_.get(), rest, &done) == 1;
    }
    return works_ && EVP_CipherFinal_ex(context_.get(), rest, &done) == 1 &&
           EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, sizeof tag, tag) == 1;
  }

 private:
  CipherContext context_;
  const Way way_;
  bool works_ = false;
};

// The head as it was before the encryption, but for the seal.
ObjectHead plain_head(ObjectHead head) {
  head.flags &= ~kObjectEncrypted;
  std::memset(head.nonce, 0, sizeof head.nonce);
  std::memset(head.tag, 0, sizeof head.tag);
  return head;
}

class EncryptedBackend final : public Backend {
 public:
  EncryptedBackend(std::unique_ptr<Backend> inner, const StorageKey& key)
      : inner_(std::move(inner)), key_(key) {}
  ~EncryptedBackend() override { OPENSSL_cleanse(key_.bytes.data(), key_.bytes.size()); }

  const BackendTraits& traits() const override { return inner_->traits(); }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override {
    return inner_->exists(keys, is_there, deadline_ns);
  }
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
               std::uint64_t deadline_ns) override {
    CACHALOT_TRY(inner_->heads(keys, heads, deadline_ns));
    for (std::optional<ObjectHead>& head : heads) {
      if (head) head = plain_head(*head);
    }
    return {};
  }
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override {
    return inner_->remove(keys, deadline_ns);
  }
  // Heads without a seal: it is known after a get.
  Status list(const Lister& each, std::uint64_t deadline_ns) override {
    return inner_->list([&](const ObjectHead& head) { return each(plain_head(head)); },
                        deadline_ns);
  }
  Result<Space> space(std::uint64_t deadline_ns) override { return inner_->space(deadline_ns); }
  Status check() override { return inner_->check(); }
  std::shared_ptr<CancelSignal> cancel_signal() const override { return inner_->cancel_signal(); }
  Status put(std::span<Put> puts, std::uint64_t deadline_ns) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override {
    return get_each(
        gets, [](Get&) {}, deadline_ns);
  }
  Status get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t deadline_ns) override;

 private:
  // A Put whose body is ciphertext.
  struct Sealed {
    Put put;
    AlignedBytes bytes;
    Bytes pieces[2];  // payload, tokens
  };
  Status encrypt(const Put& put, Sealed& sealed) const;
  Status decrypt(Get& get) const;

  const std::unique_ptr<Backend> inner_;
  StorageKey key_;
};

Status EncryptedBackend::encrypt(const Put& put, Sealed& sealed) const {
  sealed.put.head = put.head;
  ObjectHead& head = sealed.put.head;
  head.flags |= kObjectEncrypted;
  head.seal = 0;
  if (RAND_bytes(head.nonce, sizeof head.nonce) != 1) {
    return Error::make(Code::kInternal, "storage: no random numbers for a nonce");
  }
  const std::uint64_t bytes = head.body_bytes();
  sealed.bytes = AlignedBytes((bytes + 4095) / 4096 * 4096);
  std::byte* to = sealed.bytes.data();
  for (const Bytes& piece : put.body) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  // The tag proves what is encrypted, so this must be what was sealed: pool memory may have another block by now.
  const Bytes copy(sealed.bytes.data(), bytes);
  if (seal_of(put.head, {&copy, 1}) != put.head.seal) {
    return Error::make(Code::kStale, "object %.32s…: has changed since it was sealed",
                       block_hash::to_hex(head.key.block).c_str());
  }
  ObjectCipher cipher(key_, head, ObjectCipher::Way::kEncrypt);
  cipher.update(sealed.bytes.data(), sealed.bytes.data(), bytes);
  if (!cipher.end(head.tag)) return Error::make(Code::kInternal, "storage: encryption failed");
  sealed.pieces[0] = {sealed.bytes.data(), head.payload_bytes};
  sealed.pieces[1] = {sealed.bytes.data() + head.payload_bytes, bytes - head.payload_bytes};
  sealed.put.body = std::span(sealed.pieces, head.tokens == 0 ? 1 : 2);
  return {};
}

Status EncryptedBackend::put(std::span<Put> puts, std::uint64_t deadline_ns) {
  std::vector<Sealed> sealed(puts.size());
  std::vector<Put> inner;
  std::vector<Put*> of;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    puts[i].status = encrypt(puts[i], sealed[i]);
    if (!puts[i].status) continue;
    inner.push_back(sealed[i].put);
    of.push_back(&puts[i]);
  }
  const Status whole = inner_->put(inner, deadline_ns);
  for (std::size_t i = 0; i < inner.size(); ++i) of[i]->status = inner[i].status;
  return whole;
}

Status EncryptedBackend::decrypt(Get& get) const {
  ObjectHead& head = get.head;
  CACHALOT_TRY(check_head(head, get.key));
  const std::string name = block_hash::to_hex(head.key.block);
  if ((head.flags & kObjectEncrypted) == 0) {
    return Error::make(Code::kCorrupt,
                       "object %.32s…: is not encrypted, but a storage key is given", name.c_str());
  }
  if (head.payload_bytes != bytes_of(get.room) || head.tokens != get.tokens.size()) {
    return Error::make(Code::kCorrupt, "object %.32s…: has not the size of its head", name.c_str());
  }
  ObjectCipher cipher(key_, head, ObjectCipher::Way::kDecrypt);
  const auto tokens = std::as_writable_bytes(std::span(get.tokens));
  for (const Room& piece : get.room) cipher.update(piece.data(), piece.data(), piece.size());
  cipher.update(tokens.data(), tokens.data(), tokens.size());
  if (!cipher.end(head.tag)) {
    return Error::make(Code::kCorrupt, "object %.32s…: does not decrypt: damaged, or another key",
                       name.c_str());
  }
  head = plain_head(head);
  std::vector<Bytes> body(get.room.begin(), get.room.end());
  if (!tokens.empty()) body.push_back(tokens);
  head.seal = seal_of(head, body);
  return {};
}

Status EncryptedBackend::get_each(std::span<Get> gets, const Arrived& arrived,
                                  std::uint64_t deadline_ns) {
  const auto take = [&](Get& get) {
    get.status = decrypt(get);
    if (get.status) arrived(get);
  };
  return inner_->get_each(gets, take, deadline_ns);
}

}  // namespace

std::unique_ptr<Backend> make_encrypted(std::unique_ptr<Backend> inner, const StorageKey& key) {
  return std::make_unique<EncryptedBackend>(std::move(inner), key);
}

}  // namespace cachalot::storage

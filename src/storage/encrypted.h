// Encryption at rest: a backend around another one, which sees only ciphertext and heads.
//
// Each body is encrypted by AES-256-GCM with a key of its object, HMAC-SHA256(storage key, namespace and hash of the
// block), and a random nonce. The tag also covers bytes 8 to 72 of the head: key, parent and sizes, which stay
// readable. So a body with another head, of another object, or without the flag "encrypted" is refused.
//
// The seal on disk is zero, because a hash of the payload would say something about it. After the tag was verified
// the head gets the seal that its plaintext has, so Store verifies it as always.
//
// Invariants
//   1. The inner backend never gets a byte of a payload or a token.
//   2. An object that is not encrypted by this key is kCorrupt. Store drops it then, so a new key takes over the
//      storage object by object. The first one of a process is logged.
//
// @threads as the inner backend
// @cost    one pass of AES (about 4 GB/s a thread) and of the seal; a put copies the body
#pragma once

#include <cachalot/result.h>

#include <memory>

#include "os/secret_key.h"
#include "storage/backend.h"

namespace cachalot::storage {

using StorageKey = os::SecretKey;
inline constexpr const char* kStorageKeyFile = "storage key file";  // for messages

std::unique_ptr<Backend> make_encrypted(std::unique_ptr<Backend> inner, const StorageKey& key);

}  // namespace cachalot::storage

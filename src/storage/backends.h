// All kinds of storage that this build has, by the text that names one.
//
//   Result<std::unique_ptr<Backend>> backend = open_backend("redis://127.0.0.1:6379/kv", {});
//
// A new kind is a folder with an `open_NAME` function, and a row in backends.cpp (docs/extend/storage.md).
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "storage/backend.h"
#include "storage/uri.h"

namespace cachalot::storage {

// What does not belong into a text that is logged. A program takes it from its environment or a file.
struct BackendSecrets {
  std::string s3_access_key = {};     // AWS_ACCESS_KEY_ID
  std::string s3_secret_key = {};     // AWS_SECRET_ACCESS_KEY
  std::string s3_session_token = {};  // AWS_SESSION_TOKEN; may be empty
  std::string redis_password = {};    // if the text has none
  // A file with the key of AES-256-GCM (encrypted.h). Empty: objects are stored as they are.
  std::string key_file = {};
  std::string s3_profile_file = {};       // AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials
  std::string s3_profile = {};            // AWS_PROFILE; empty: "default"
  std::string s3_web_token_file = {};     // AWS_WEB_IDENTITY_TOKEN_FILE
  std::string s3_role_arn = {};           // AWS_ROLE_ARN
  std::string s3_sts_endpoint = {};       // AWS_ENDPOINT_URL_STS; empty: Amazon's
  std::string s3_metadata_endpoint = {};  // AWS_EC2_METADATA_SERVICE_ENDPOINT; empty: Amazon's
};

enum class Opening {
  kReal,
  kOnlyChecked,  // its text and the files that it names; no directory is touched, no server is asked
};

struct BackendKind {
  const char* scheme;      // "file"
  const char* form;        // "file:DIR[?sync=1]"
  const char* parameters;  // their names, separated by spaces; "*": any
  Result<std::unique_ptr<Backend>> (*open)(const StorageUri& uri, const BackendSecrets& secrets,
                                           Opening how);
};

// In the order of the documentation; also those that this build left out.
std::span<const BackendKind> backend_kinds();

// Checks what can be checked without opening: the kind and whether this build has it, the parameters, the files
// of keys and passwords.
// @errors kInvalidArgument; kUnsupported; those of os::SecretKey::read
Status check_backend(std::string_view text, const BackendSecrets& secrets);

// @errors kInvalidArgument: no such kind, no such parameter, or a wrong value; kUnsupported: this build has it
//         not; and those of the kind
Result<std::unique_ptr<Backend>> open_backend(std::string_view text, const BackendSecrets& secrets);

}  // namespace cachalot::storage

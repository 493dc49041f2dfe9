#include "storage/backends.h"

#include "storage/encrypted.h"
#include "storage/open_kinds.h"

namespace cachalot::storage {
namespace {

constexpr const char* kRedisParameters = "prefix cluster password_file connections";
constexpr const char* kRedisTlsParameters = "prefix cluster password_file connections ca cert key";

constexpr BackendKind kKinds[] = {
    {"file",
     "file:DIR[?sync=1][&min_free_bytes=N][&allow_foreign=1], "
     "file:DIR?shared=1[&limit=SIZE][&allow_foreign=1]",
     "sync min_free_bytes allow_foreign shared limit", open_file},
    {"rocksdb", "rocksdb:DIR[?sync=1][&allow_foreign=1]", "sync allow_foreign", open_rocksdb},
    {"redis", "redis://[[USER][:PASSWORD]@]HOST[:PORT][/DATABASE][?prefix=PREFIX][&cluster=1]",
     kRedisParameters, open_redis},
    {"rediss", "rediss://…[?ca=FILE][&cert=FILE][&key=FILE]", kRedisTlsParameters, open_redis},
    {"valkey", "valkey://…", kRedisParameters, open_redis},
    {"valkeys", "valkeys://…", kRedisTlsParameters, open_redis},
    {"redis+unix", "redis+unix:PATH[?prefix=PREFIX][&db=DATABASE]",
     "prefix db password_file connections", open_redis},
    {"s3",
     "s3://BUCKET[/PREFIX]?endpoint=URL[&region=NAME][&style=path|host][&ca=FILE][&profile=NAME]"
     "[&instance_keys=1]",
     "endpoint region style ca profile instance_keys connections", open_s3},
    {"plugin", "plugin:PATH.so[?NAME=VALUE&…]", "*", open_plugin},
    {"null", "null:", "", open_null},
};

Result<const BackendKind*> find_kind(const StorageUri& uri) {
  std::string known;
  for (const BackendKind& kind : kKinds) {
    if (uri.scheme == kind.scheme) return &kind;
    known += std::string(known.empty() ? "" : ", ") + kind.scheme;
  }
  return Error::make(Code::kInvalidArgument, "storage \"%s\": unknown kind \"%.20s\"; known: %s",
                     uri.shown.c_str(), uri.scheme.c_str(), known.c_str());
}

}  // namespace

std::span<const BackendKind> backend_kinds() {
  return kKinds;
}

Status check_backend(std::string_view text, const BackendSecrets& secrets) {
  CACHALOT_TRY_ASSIGN(const StorageUri uri, StorageUri::parse("storage", text));
  CACHALOT_TRY_ASSIGN(const BackendKind* const kind, find_kind(uri));
  CACHALOT_TRY(uri.check_parameters(kind->parameters));
  CACHALOT_TRY(kind->open(uri, secrets, Opening::kOnlyChecked));
  if (!secrets.key_file.empty()) CACHALOT_TRY(StorageKey::read(kStorageKeyFile, secrets.key_file));
  return {};
}

Result<std::unique_ptr<Backend>> open_backend(std::string_view text,
                                              const BackendSecrets& secrets) {
  CACHALOT_TRY_ASSIGN(const StorageUri uri, StorageUri::parse("storage", text));
  CACHALOT_TRY_ASSIGN(const BackendKind* const kind, find_kind(uri));
  CACHALOT_TRY(uri.check_parameters(kind->parameters));
  if (secrets.key_file.empty()) return kind->open(uri, secrets, Opening::kReal);
  // The key first: a wrong file must not leave an empty storage.
  CACHALOT_TRY_ASSIGN(const StorageKey key, StorageKey::read(kStorageKeyFile, secrets.key_file));
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Backend> backend, kind->open(uri, secrets, Opening::kReal));
  return make_encrypted(std::move(backend), key);
}

}  // namespace cachalot::storage

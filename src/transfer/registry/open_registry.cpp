#include "transfer/registry/open_stores.h"
#include "transfer/registry/registry.h"

namespace cachalot::transfer {
namespace {

struct Kind {
  std::string_view scheme, parameters;
  OpenedStore (*open)(const base::Uri& uri);
};

constexpr Kind kKinds[] = {
    {"file", "shared", open_file_store},
    {"etcd", "ttl_s", open_etcd_store},
    {"etcds", "ttl_s ca cert key", open_etcd_store},
};

}  // namespace

Result<std::unique_ptr<Registry>> open_registry(std::string_view text,
                                                const std::optional<os::SecretKey>& cluster_key) {
  CACHALOT_TRY_ASSIGN(const base::Uri uri, base::Uri::parse("registry", text));
  for (const Kind& kind : kKinds) {
    if (uri.scheme != kind.scheme) continue;
    CACHALOT_TRY(uri.check_parameters(kind.parameters));
    CACHALOT_TRY_ASSIGN(std::unique_ptr<RecordStore> store, kind.open(uri));
    return std::make_unique<Registry>(std::move(store), cluster_key);
  }
  return Error::make(Code::kInvalidArgument,
                     "registry \"%s\": unknown kind \"%.20s\", expected file, etcd or etcds",
                     uri.shown.c_str(), uri.scheme.c_str());
}

}  // namespace cachalot::transfer

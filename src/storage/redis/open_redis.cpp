#include "storage/open_kinds.h"
#include "storage/redis/redis_backend.h"

namespace cachalot::storage {
namespace {

// "//[USER:PASSWORD@]HOST[:PORT][/PREFIX]"
Status read_place(const StorageUri& uri, RedisOptions& options, std::string& prefix) {
  std::string_view rest = uri.place;
  if (!rest.starts_with("//")) {
    return Error::make(Code::kInvalidArgument, "storage \"%s\": expected redis://HOST:PORT",
                       uri.shown.c_str());
  }
  rest.remove_prefix(2);
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    CACHALOT_TRY_ASSIGN(prefix, decode_percent(rest.substr(slash + 1)));
    rest = rest.substr(0, slash);
  }
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = rest.substr(0, at);
    const std::size_t colon = login.find(':');
    if (colon == std::string_view::npos) {
      return Error::make(Code::kInvalidArgument, "storage \"%s\": expected USER:PASSWORD before @",
                         uri.shown.c_str());
    }
    CACHALOT_TRY_ASSIGN(options.login.user, decode_percent(login.substr(0, colon)));
    CACHALOT_TRY_ASSIGN(options.login.password, decode_percent(login.substr(colon + 1)));
    rest.remove_prefix(at + 1);
  }
  CACHALOT_TRY_ASSIGN(options.address, RedisAddress::parse(rest));
  return {};
}

}  // namespace

OpenedBackend open_redis(const StorageUri& uri, const BackendSecrets& secrets) {
  RedisOptions options;
  std::string prefix;
  if (uri.scheme == "redis+unix") {
    CACHALOT_TRY_ASSIGN(options.address.path, uri.path());
    if (const std::string* const given = uri.find("prefix")) prefix = *given;
  } else {
    CACHALOT_TRY(read_place(uri, options, prefix));
    CACHALOT_TRY_ASSIGN(options.is_cluster, uri.flag("cluster", false));
  }
  if (options.login.password.empty()) options.login.password = secrets.redis_password;
  CACHALOT_TRY_ASSIGN(const std::uint64_t connections,
                      uri.number("connections", options.most_connections, 1, 1024));
  options.most_connections = static_cast<std::uint32_t>(connections);
  return std::unique_ptr<Backend>(std::make_unique<RedisBackend>(options, prefix));
}

}  // namespace cachalot::storage

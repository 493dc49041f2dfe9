#include <sys/un.h>

#include <array>

#include "base/clock.h"
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

// The kernel, and hiredis without a word, cut a longer one off.
Status check_socket_path(const StorageUri& uri, const std::string& path) {
  constexpr std::size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kMost) return {};
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": a socket's path of %zu bytes, expected at most %zu",
                     uri.shown.c_str(), path.size(), kMost);
}

// A server that answers must accept the login. One that is down may accept it later.
Status check_login(Backend& backend) {
  constexpr std::uint64_t kPatienceNs = 2'000'000'000;
  // Several keys: a server of a cluster refuses only those of other servers.
  std::array<ObjectKey, 32> keys{};
  std::array<bool, 32> is_there{};
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i].block.low = i;
  const Status answer = backend.exists(keys, is_there, base::SteadyClock::read() + kPatienceNs);
  if (answer) return {};
  const Code code = answer.error().code;
  return code == Code::kPermission || code == Code::kUnsupported ? answer : Status();
}

}  // namespace

OpenedBackend open_redis(const StorageUri& uri, const BackendSecrets& secrets) {
  RedisOptions options;
  std::string prefix;
  if (uri.scheme == "redis+unix") {
    CACHALOT_TRY_ASSIGN(options.address.path, uri.path());
    CACHALOT_TRY(check_socket_path(uri, options.address.path));
    if (const std::string* const given = uri.find("prefix")) prefix = *given;
  } else {
    CACHALOT_TRY(read_place(uri, options, prefix));
    CACHALOT_TRY_ASSIGN(options.is_cluster, uri.flag("cluster", false));
  }
  if (options.login.password.empty()) options.login.password = secrets.redis_password;
  CACHALOT_TRY_ASSIGN(const std::uint64_t connections,
                      uri.number("connections", options.most_connections, 1, 1024));
  options.most_connections = static_cast<std::uint32_t>(connections);
  auto backend = std::make_unique<RedisBackend>(options, prefix);
  CACHALOT_TRY(check_login(*backend));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace cachalot::storage

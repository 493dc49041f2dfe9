#include <sys/un.h>

#include <algorithm>
#include <charconv>

#include "base/clock.h"
#include "base/log.h"
#include "storage/backends.h"
#include "storage/open_kinds.h"
#include "storage/redis/redis_backend.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kMostDatabases = 1u << 20;

Status read_database(const StorageUri& uri, std::string_view text, std::uint32_t& database) {
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, database);
  if (failed == std::errc() && stop == end) return {};
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": the path is a database's number, not \"%.40s\"; "
                     "a prefix of the keys is ?prefix=%.40s",
                     uri.shown.c_str(), std::string(text).c_str(), std::string(text).c_str());
}

// "//[[USER][:PASSWORD]@]HOST[:PORT][/DATABASE]"
Status read_place(const StorageUri& uri, RedisOptions& options) {
  std::string_view rest = uri.place;
  if (!rest.starts_with("//")) {
    return Error::make(Code::kInvalidArgument, "storage \"%s\": expected %s://HOST:PORT",
                       uri.shown.c_str(), uri.scheme.c_str());
  }
  rest.remove_prefix(2);
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    CACHALOT_TRY_ASSIGN(const std::string path, decode_percent(rest.substr(slash + 1)));
    if (!path.empty()) CACHALOT_TRY(read_database(uri, path, options.login.database));
    rest = rest.substr(0, slash);
  }
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view login = rest.substr(0, at);
    const std::size_t colon = std::min(login.find(':'), login.size());
    CACHALOT_TRY_ASSIGN(options.login.user, decode_percent(login.substr(0, colon)));
    if (colon != login.size()) {
      CACHALOT_TRY_ASSIGN(options.login.password, decode_percent(login.substr(colon + 1)));
    }
    rest.remove_prefix(at + 1);
  }
  CACHALOT_TRY_ASSIGN(options.address, RedisAddress::parse(rest));
  return {};
}

std::string parameter(const StorageUri& uri, std::string_view name) {
  const std::string* const given = uri.find(name);
  return given == nullptr ? "" : *given;
}

// The password: of the text, of a file, or of the environment.
Status read_login(const StorageUri& uri, const BackendSecrets& secrets, RedisLogin& login) {
  login.password_file = parameter(uri, "password_file");
  if (!login.password_file.empty() && !login.password.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "storage \"%s\": has a password and a password_file, expected one of them",
                       uri.shown.c_str());
  }
  if (!login.password_file.empty()) {
    CACHALOT_TRY(read_password(login.password_file));
    return {};
  }
  if (login.password.empty()) login.password = secrets.redis_password;
  if (login.user.empty() || !login.password.empty()) return {};
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": user \"%.60s\" has no password; expected "
                     "CACHALOT_REDIS_PASSWORD, ?password_file=FILE or USER:PASSWORD",
                     uri.shown.c_str(), login.user.c_str());
}

// The kernel, and hiredis without a word, cut a longer one off.
Status check_socket_path(const StorageUri& uri, const std::string& path) {
  constexpr std::size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kMost) return {};
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": a socket's path of %zu bytes, expected at most %zu",
                     uri.shown.c_str(), path.size(), kMost);
}

// A server that answers must accept the login, and let its user read. One that is down may do so later.
Status check_access(RedisBackend& backend, bool is_encrypted) {
  constexpr std::uint64_t kPatienceNs = 2'000'000'000;
  const Status answer = backend.check_access(base::SteadyClock::read() + kPatienceNs);
  if (answer) return {};
  const Code code = answer.error().code;
  // A server without TLS waits for the rest of what is no command to it, and so does each call.
  if (code == Code::kTimeout && is_encrypted)
    base::log(base::LogLevel::kWarn, "storage", "%s", answer.error().message);
  return code == Code::kPermission || code == Code::kUnsupported ? answer : Status();
}

}  // namespace

OpenedBackend open_redis(const StorageUri& uri, const BackendSecrets& secrets, Opening how) {
  RedisOptions options;
  if (uri.scheme == "redis+unix") {
    CACHALOT_TRY_ASSIGN(options.address.path, uri.path());
    CACHALOT_TRY(check_socket_path(uri, options.address.path));
    CACHALOT_TRY_ASSIGN(const std::uint64_t database, uri.number("db", 0, 0, kMostDatabases));
    options.login.database = static_cast<std::uint32_t>(database);
  } else {
    CACHALOT_TRY(read_place(uri, options));
    CACHALOT_TRY_ASSIGN(options.is_cluster, uri.flag("cluster", false));
  }
  CACHALOT_TRY(read_login(uri, secrets, options.login));
  if (options.is_cluster && options.login.database != 0) {
    return Error::make(Code::kInvalidArgument,
                       "storage \"%s\": database %u, but a cluster has number 0 only",
                       uri.shown.c_str(), options.login.database);
  }
  if (uri.scheme == "rediss" || uri.scheme == "valkeys") {
    CACHALOT_TRY_ASSIGN(options.login.tls, Tls::load({parameter(uri, "ca"), parameter(uri, "cert"),
                                                      parameter(uri, "key")}));
  }
  CACHALOT_TRY_ASSIGN(const std::uint64_t connections,
                      uri.number("connections", options.most_connections, 1, 1024));
  options.most_connections = static_cast<std::uint32_t>(connections);
  if (how == Opening::kOnlyChecked) return std::unique_ptr<Backend>();
  auto backend = std::make_unique<RedisBackend>(options, parameter(uri, "prefix"));
  CACHALOT_TRY(check_access(*backend, options.login.tls != nullptr));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace cachalot::storage

#include "service_checks.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "pool_flags.h"
#include "pool_report.h"
#include "transfer/registry/registry.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kPatienceNs = 5'000'000'000;

bool is_server(const std::string& uri) {
  for (const char* const kind : {"redis", "valkey", "s3"})
    if (uri.starts_with(kind)) return true;
  return false;
}

}  // namespace

Finding check_pool(const std::string& path) {
  const Result<pool::Pool> pool = open_pool_to_read({path});
  if (!pool)
    return {"pool", Health::kFault, pool.error().message,
            "cachalot pool list shows those of /dev/shm"};
  const Json all = describe_pool(*pool);
  const std::string state = all["keeper"]["state"];
  if (state != "serving")
    return {"pool", Health::kFault, path + ": keeper " + state,
            "cachalot serve --pool " + path + " (a --standby takes over by itself)"};
  const Json accounting = all.value("accounting", Json::object());
  const auto number = [&](const char* name) { return accounting.value(name, std::uint64_t{0}); };
  if (number("bad_blocks") + number("quarantined_blocks") != 0)
    return {"pool", Health::kWarning,
            path + ": " + std::to_string(number("bad_blocks")) + " bad and " +
                std::to_string(number("quarantined_blocks")) + " quarantined blocks",
            "an engine may have died or hang: cachalot pool info names it, cachalot pool fence "
            "ends it"};
  const Json causes = all["misses"]["causes"];
  if (!causes.empty() && causes[0]["cause"] == "other_namespace")
    return {"pool", Health::kWarning, path + ": " + causes[0]["detail"].get<std::string>(),
            "engines share blocks only if their models, dtypes, block sizes and salts are equal"};
  return {"pool", Health::kOk,
          path + ": serving, " + std::to_string(all["attached"].size()) + " clients, " +
              bytes_text(all["geometry"]["capacity_bytes"].get<std::uint64_t>())};
}

Finding check_storage(const std::string& uri, const storage::BackendSecrets& secrets) {
  if (const Status right = storage::check_backend(uri, secrets); !right)
    return {"storage", Health::kFault, right.error().message,
            "cachalot serve --help lists the forms"};
  if (!is_server(uri)) return {"storage", Health::kOk, uri + " can be opened by a keeper"};
  const auto backend = storage::open_backend(uri, secrets);
  if (!backend)
    return {"storage", Health::kFault, backend.error().message,
            "cachalot serve --help lists the forms"};
  const storage::ObjectKey keys[1] = {};
  bool is_there[1] = {};
  const std::uint64_t began_ns = base::SteadyClock::read();
  const Status asked = (*backend)->exists(keys, is_there, began_ns + kPatienceNs);
  const std::uint64_t us = (base::SteadyClock::read() - began_ns) / 1000;
  if (!asked)
    return {"storage", Health::kFault, asked.error().message,
            "a keeper goes on without it, and tries it once a second"};
  return {"storage", Health::kOk,
          (*backend)->traits().name + " has answered after " + std::to_string(us / 1000) + "." +
              std::to_string(us / 100 % 10) + " ms"};
}

Finding check_registry(const std::string& uri, const std::optional<os::SecretKey>& key) {
  constexpr std::string_view kFolder = "file:";
  if (uri.starts_with(kFolder) && !std::filesystem::exists(uri.substr(kFolder.size())))
    return {"registry", Health::kOk, uri + " is not there yet; the first keeper makes it"};
  const auto registry = transfer::open_registry(uri, key);
  if (!registry)
    return {"registry", Health::kFault, registry.error().message,
            "file:FOLDER or etcd://HOST:PORT/PREFIX"};
  const auto records = (*registry)->list("", base::SteadyClock::read() + kPatienceNs);
  if (!records)
    return {"registry", Health::kFault, records.error().message,
            "hosts that are connected stay so; others do not find each other"};
  return {"registry", Health::kOk,
          uri + ": " + std::to_string(records->size()) + " records" +
              (key ? " with this cluster's key" : "")};
}

}  // namespace cachalot::apps

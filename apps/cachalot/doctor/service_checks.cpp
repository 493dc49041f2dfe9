#include "service_checks.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/words.h"
#include "keeper_hangs.h"
#include "os/shared_file.h"
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

std::size_t records_of_any_key(const std::string& uri) {
  const auto registry = transfer::open_registry(uri);
  if (!registry) return 0;
  const auto records = (*registry)->list("", base::SteadyClock::read() + kPatienceNs);
  return records ? records->size() : 0;
}

constexpr const char* kServerAdvice =
    "see that it runs, and its host, port and firewall; meanwhile a keeper goes on without it";

Finding check_state(const std::string& path, const pool::Pool& pool) {
  const Json all = describe_pool(pool, keeper_hangs(pool));
  const std::string state = all["keeper"]["state"];
  if (state != "serving")
    return {"pool", Health::kFault, path + ": keeper " + state,
            "cachalot serve --pool " + path + " (a --standby takes over by itself)"};
  if (all["keeper"]["hangs"].get<bool>())
    return {"pool", Health::kFault,
            path + ": the keeper hangs: it has published nothing for " +
                std::to_string(kHangsAfterS) + " s",
            "cachalot serve --pool " + path + " --take-over, or kill it with SIGKILL"};
  const Json storage = all["storage"];
  if (!storage.is_null() && !storage["in_use"].get<bool>())
    return {"pool", Health::kWarning, path + ": its storage is out of use",
            "cachalot pool info " + path + " says why; meanwhile the keeper goes on without it"};
  if (!storage.is_null() && storage.contains("peers") && storage["peers"] == 0)
    return {"pool", Health::kWarning, path + ": no other host is connected",
            "is another one started, with the same --peers and --cluster-key-file? Its log says "
            "why not"};
  const Json accounting = all.value("accounting", Json::object());
  const auto number = [&](const char* name) { return accounting.value(name, std::uint64_t{0}); };
  if (number("bad_blocks") + number("quarantined_blocks") != 0)
    return {
        "pool", Health::kWarning,
        path + ": " + std::to_string(number("bad_blocks")) + " bad and " +
            std::to_string(number("quarantined_blocks")) + " quarantined blocks",
        "an engine hangs, or died where the keeper cannot see it: cachalot pool info names the "
        "process that is held; its blocks are free when it has ended. cachalot pool fence is for "
        "a process that has ended elsewhere: one that runs on writes into blocks of others"};
  const Json causes = all["misses"]["causes"];
  if (!causes.empty() && causes[0]["cause"] == "other_namespace")
    return {"pool", Health::kWarning, path + ": " + causes[0]["detail"].get<std::string>(),
            "engines share blocks only if their models, dtypes, block sizes and salts are equal"};
  return {"pool", Health::kOk,
          path + ": serving, " + base::counted(all["attached"].size(), "client") + ", " +
              bytes_text(all["geometry"]["capacity_bytes"].get<std::uint64_t>())};
}

// Devices that were added to the pool. The next keeper does not start without those that it should have.
Findings check_added_devices(const std::string& path, const pool::Pool& pool) {
  Findings findings;
  const Json all = describe_pool(pool, false);
  for (const Json& device : all["geometry"].value("added_devices", Json::array())) {
    if (device["state"] != "lost") continue;
    findings.push_back({"pool_device", Health::kWarning,
                        path + ": " + device["path"].get<std::string>() +
                            " is lost: " + device["why_lost"].get<std::string>(),
                        "put it back, or cachalot pool shrink " + path + " --device " +
                            device["path"].get<std::string>()});
  }
  return findings;
}

// Keepers and clients open each device like this.
Finding check_owner(const std::string& path, const pool::Pool& pool) {
  std::vector<std::string> devices = pool.paths();
  if (const auto table = pool.state().read_expansions()) {
    for (const pool::Expansion& added : table->expansions) devices.push_back(added.path);
  }
  for (const std::string& device : devices) {
    const Result<os::SharedFile> file =
        os::SharedFile::open(device, os::Access::kReadWrite, os::Owners::kTrusted);
    if (file || file.error().code == Code::kNotFound) continue;  // that is another check's
    return {"pool_owner", Health::kWarning, file.error().message,
            "keepers and clients of this user refuse it: chmod o-w, start them as its user, or, if "
            "all users that may write to it are trusted, with --allow-foreign-pool"};
  }
  return {"pool_owner", Health::kOk, path + ": of this user or root, and others may not write"};
}

std::string advice_of(const std::string& path, const Error& error) {
  if (error.os_error == EACCES || error.os_error == EPERM)
    return "this user may not read it: ask as its owner (ls -l " + path + ")";
  if (error.code == Code::kNotFound) return "cachalot serve --pool " + path + " --create makes one";
  return "cachalot pool fsck " + path +
         " says what is damaged, and --repair leaves what can be trusted";
}

}  // namespace

Findings check_pool(const std::string& path) {
  const Result<pool::Pool> pool = open_pool_to_read({path});
  if (!pool) return {{"pool", Health::kFault, pool.error().message, advice_of(path, pool.error())}};
  Findings findings = {check_state(path, *pool), check_owner(path, *pool)};
  std::ranges::move(check_added_devices(path, *pool), std::back_inserter(findings));
  return findings;
}

Finding check_storage(const std::string& uri, const storage::BackendSecrets& secrets) {
  if (const Status right = storage::check_backend(uri, secrets); !right)
    return {"storage", Health::kFault, right.error().message,
            "cachalot serve --help lists the forms"};
  if (!is_server(uri))
    return {"storage", Health::kOk, uri + " is well formed; only a keeper opens it"};
  const auto backend = storage::open_backend(uri, secrets);
  if (!backend)
    return {"storage", Health::kFault, backend.error().message,
            "cachalot serve --help lists the forms"};
  const storage::ObjectKey keys[1] = {};
  bool is_there[1] = {};
  const std::uint64_t began_ns = base::SteadyClock::read();
  const Status asked = (*backend)->exists(keys, is_there, began_ns + kPatienceNs);
  const std::uint64_t us = (base::SteadyClock::read() - began_ns) / 1000;
  if (!asked) return {"storage", Health::kFault, asked.error().message, kServerAdvice};
  return {"storage", Health::kOk,
          (*backend)->traits().name + " has answered after " + std::to_string(us / 1000) + "." +
              std::to_string(us / 100 % 10) + " ms"};
}

Finding check_registry(const std::string& uri, const std::optional<os::SecretKey>& key) {
  constexpr std::string_view kFolder = "file:";
  const std::filesystem::path folder(uri.starts_with(kFolder) ? uri.substr(kFolder.size()) : "/");
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored) &&
      std::filesystem::is_directory(std::filesystem::absolute(folder).parent_path(), ignored))
    return {"registry", Health::kOk, uri + " is not there yet; the first keeper makes it"};
  const auto registry = transfer::open_registry(uri, key);
  if (!registry)
    return {"registry", Health::kFault, registry.error().message,
            "file:FOLDER or etcd://HOST:PORT/PREFIX"};
  const auto records = (*registry)->list("", base::SteadyClock::read() + kPatienceNs);
  if (!records) return {"registry", Health::kFault, records.error().message, kServerAdvice};
  if (const std::size_t all = key ? records_of_any_key(uri) : 0; all > records->size()) {
    return {"registry", Health::kWarning,
            uri + ": " + std::to_string(records->size()) + " of " + base::counted(all, "record") +
                " with this cluster's key",
            "all hosts of a cluster have the same --cluster-key-file"};
  }
  return {"registry", Health::kOk,
          uri + ": " + base::counted(records->size(), "record") +
              (key ? " with this cluster's key" : "")};
}

}  // namespace cachalot::apps

#include "transfer/registry/etcd/etcd_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "transfer/registry/etcd/base64.h"
#include "transfer/registry/open_stores.h"

namespace cachalot::transfer {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kNsPerS = 1'000'000'000;

// A key of etcd's, with what is known of it.
struct Entry {
  std::string key, value, lease, revision;
};

// A member of an object, or null: etcd's gateway leaves out zeros and what is empty.
const Json& member(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto at = object.find(name);
  return at == object.end() ? kNull : *at;
}
// A member that is a text, as 64-bit numbers are.
std::string text_of(const Json& object, const char* name) {
  const Json& text = member(object, name);
  return text.is_string() ? text.get<std::string>() : "";
}

class Answers {
 public:
  Answers(EtcdClient& client, const std::string& where) : client_(client), where_(where) {}

  Result<Json> ask(const char* path, const Json& question, std::uint64_t deadline_ns) {
    CACHALOT_TRY_ASSIGN(const std::string text, client_.post(path, question.dump(), deadline_ns));
    Json answer = Json::parse(text, nullptr, false);
    if (!answer.is_object()) return wrong(path);
    return answer;
  }
  Result<std::vector<Entry>> entries(const char* path, const Json& answer) {
    std::vector<Entry> entries;
    const Json& kvs = member(answer, "kvs");
    if (!kvs.is_null() && !kvs.is_array()) return wrong(path);
    for (const Json& kv : kvs) {
      std::optional<std::string> key = from_base64(text_of(kv, "key"));
      std::optional<std::string> value = from_base64(text_of(kv, "value"));
      if (!key || !value) return wrong(path);
      entries.push_back(
          {*std::move(key), *std::move(value), text_of(kv, "lease"), text_of(kv, "mod_revision")});
    }
    return entries;
  }
  Error wrong(const char* path) const {
    return Error::make(Code::kIo, "%s: its answer to %s is not etcd's", where_.c_str(), path);
  }

 private:
  EtcdClient& client_;
  const std::string& where_;
};

std::string first_of(const std::vector<std::string>& endpoints) {
  return "registry etcd://" + endpoints.front().substr(0, 60);
}

// The first key after all that begin with these bytes. UTF-8 has no byte 0xff.
std::string end_of(std::string prefix) {
  ++prefix.back();
  return prefix;
}

constexpr const char kRange[] = "/v3/kv/range", kTransaction[] = "/v3/kv/txn",
                     kGrant[] = "/v3/lease/grant", kKeepAlive[] = "/v3/lease/keepalive",
                     kRevoke[] = "/v3/lease/revoke";

}  // namespace

// "HOST:PORT,[::1]:PORT/prefix"
OpenedStore open_etcd_store(const base::Uri& uri) {
  const auto wrong = [&] {
    return Error::make(Code::kInvalidArgument,
                       "registry \"%s\": expected %s://HOST:PORT[,HOST:PORT][/PREFIX][?ttl_s=N]",
                       uri.shown.c_str(), uri.scheme.c_str());
  };
  std::string_view place = uri.place;
  if (!place.starts_with("//")) return wrong();
  place.remove_prefix(2);
  EtcdOptions options;
  const std::size_t slash = std::min(place.find('/'), place.size());
  if (slash + 1 < place.size()) {
    CACHALOT_TRY_ASSIGN(options.prefix, base::decode_percent(place.substr(slash)));
    while (options.prefix.ends_with('/')) options.prefix.pop_back();
    CACHALOT_TRY(check_name(options.prefix));
  }
  std::string_view hosts = place.substr(0, slash);
  while (true) {
    const std::string_view one = hosts.substr(0, hosts.find(','));
    const std::size_t colon = one.rfind(':');
    const bool is_endpoint =
        colon != std::string_view::npos && colon != 0 && colon + 1 < one.size() &&
        one.find_first_not_of("0123456789", colon + 1) == std::string_view::npos &&
        one.find_first_of("/?#@\\ ") == std::string_view::npos;
    if (!is_endpoint) return wrong();
    options.endpoints.emplace_back(one);
    if (one.size() == hosts.size()) break;
    hosts.remove_prefix(one.size() + 1);
  }
  // etcd itself grants no less than 2 s, and a busy disk delays it by more than one.
  CACHALOT_TRY_ASSIGN(options.ttl_s, uri.number("ttl_s", options.ttl_s, 3, 3600));
  options.tls.is_used = uri.scheme == "etcds";
  for (const auto& [name, file] : {std::pair{"ca", &options.tls.ca_file},
                                   {"cert", &options.tls.cert_file},
                                   {"key", &options.tls.key_file}}) {
    if (const std::string* const given = uri.find(name); given != nullptr) *file = *given;
    // A file that is absent is named here; libcurl speaks of its library's errors.
    if (!file->empty() && access(file->c_str(), R_OK) != 0)
      return Error::from_errno(errno, "registry \"%s\": %s: %.120s", uri.shown.c_str(), name,
                               file->c_str());
  }
  if (options.tls.cert_file.empty() != options.tls.key_file.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "registry \"%s\": has one of cert and key, expected both or none",
                       uri.shown.c_str());
  }
  return std::unique_ptr<RecordStore>(std::make_unique<EtcdStore>(std::move(options)));
}

EtcdStore::EtcdStore(EtcdOptions options)
    : options_(std::move(options)),
      keys_(options_.prefix + "/peers/"),
      where_(first_of(options_.endpoints)),
      client_(options_.endpoints, options_.tls) {}

RecordStore::Timing EtcdStore::timing() const {
  return {.renew_ns = options_.ttl_s * kNsPerS / 3, .lapse_ns = options_.ttl_s * kNsPerS};
}

// --- The own record --------------------------------------------------------------------------------

Status EtcdStore::renew_lease(std::uint64_t deadline_ns) {
  Answers etcd(client_, where_);
  if (!lease_.empty()) {
    const Result<Json> answer = etcd.ask(kKeepAlive, {{"ID", lease_}}, deadline_ns);
    if (!answer && answer.error().code != Code::kNotFound) return answer.error();
    if (answer && !member(*answer, "result").is_object()) return etcd.wrong(kKeepAlive);
    if (answer && !text_of(member(*answer, "result"), "TTL").empty()) return {};
    lease_.clear();  // it has lapsed, or the cluster lost it
  }
  CACHALOT_TRY_ASSIGN(const Json answer,
                      etcd.ask(kGrant, {{"TTL", std::to_string(options_.ttl_s)}}, deadline_ns));
  lease_ = text_of(answer, "ID");
  if (lease_.empty()) return etcd.wrong(kGrant);
  return {};
}

Status EtcdStore::create_key(const PeerRecord& record, std::uint64_t deadline_ns) {
  Answers etcd(client_, where_);
  const std::string key = to_base64(keys_ + record.name);
  // Puts the record if the key's revision is this one.
  const auto put_if = [&](const char* target, const char* field, const std::string& revision) {
    const Json condition = {
        {"key", key}, {"target", target}, {field, revision}, {"result", "EQUAL"}};
    const Json put = {{"key", key}, {"value", to_base64(encode(record))}, {"lease", lease_}};
    const Json range = {{"key", key}};
    return etcd.ask(kTransaction,
                    {{"compare", Json::array({condition})},
                     {"success", Json::array({Json::object({{"request_put", put}})})},
                     {"failure", Json::array({Json::object({{"request_range", range}})})}},
                    deadline_ns);
  };
  const auto succeeded = [](const Json& answer) { return member(answer, "succeeded") == true; };
  CACHALOT_TRY_ASSIGN(const Json created, put_if("CREATE", "create_revision", "0"));
  if (succeeded(created)) return {};
  const Json& responses = member(created, "responses");
  if (!responses.is_array() || responses.empty()) return etcd.wrong(kTransaction);
  CACHALOT_TRY_ASSIGN(const std::vector<Entry> entries,
                      etcd.entries(kTransaction, member(responses[0], "response_range")));
  if (entries.empty()) return etcd.wrong(kTransaction);
  const Result<PeerRecord> holder = decode(entries[0].value, record.name, where_);
  if (holder && holder->incarnation == record.incarnation) {
    if (entries[0].lease == lease_) return {};
    CACHALOT_TRY_ASSIGN(const Json replaced, put_if("MOD", "mod_revision", entries[0].revision));
    if (succeeded(replaced)) return {};
  }
  return Error::make(Code::kBusy, "%s: peer \"%.60s\" lives: %.90s", where_.c_str(),
                     record.name.c_str(),
                     holder ? describe(*holder).c_str() : "its record cannot be read");
}

Status EtcdStore::hold(const PeerRecord& record, std::uint64_t deadline_ns) {
  CACHALOT_TRY(renew_lease(deadline_ns));
  return create_key(record, deadline_ns);
}

Status EtcdStore::release(std::uint64_t deadline_ns) {
  if (lease_.empty()) return {};
  const Result<Json> revoked =
      Answers(client_, where_).ask(kRevoke, {{"ID", std::exchange(lease_, "")}}, deadline_ns);
  if (!revoked && revoked.error().code != Code::kNotFound) return revoked.error();
  return {};
}

// --- The records of others -------------------------------------------------------------------------

Result<PeerRecord> EtcdStore::find(std::string_view name, std::uint64_t deadline_ns) {
  Answers etcd(client_, where_);
  const std::string key = keys_ + std::string(name);
  CACHALOT_TRY_ASSIGN(const Json answer, etcd.ask(kRange, {{"key", to_base64(key)}}, deadline_ns));
  CACHALOT_TRY_ASSIGN(const std::vector<Entry> entries, etcd.entries(kRange, answer));
  if (entries.empty())
    return Error::make(Code::kNotFound, "%s: no live peer \"%.60s\"", where_.c_str(),
                       std::string(name).c_str());
  return decode(entries[0].value, name, where_);
}

Result<std::vector<PeerRecord>> EtcdStore::list(std::string_view prefix,
                                                std::uint64_t deadline_ns) {
  Answers etcd(client_, where_);
  const std::string from = keys_ + std::string(prefix);
  const Json question = {{"key", to_base64(from)},
                         {"range_end", to_base64(end_of(from))},
                         {"limit", std::to_string(kMostPeers + 1)}};
  CACHALOT_TRY_ASSIGN(const Json answer, etcd.ask(kRange, question, deadline_ns));
  CACHALOT_TRY_ASSIGN(const std::vector<Entry> entries, etcd.entries(kRange, answer));
  if (entries.size() > kMostPeers)
    return Error::make(Code::kNoSpace, "%s: more than %zu peers, expected a longer prefix",
                       where_.c_str(), kMostPeers);
  std::vector<PeerRecord> peers;
  for (const Entry& entry : entries) {
    if (!entry.key.starts_with(keys_)) return etcd.wrong(kRange);
    Result<PeerRecord> peer = decode(entry.value, entry.key.substr(keys_.size()), where_);
    if (peer) {
      peers.push_back(*std::move(peer));
    } else if (bad_record_line_.is_due()) {
      base::log(base::LogLevel::kWarn, "registry", "%s", peer.error().message);
    }
  }
  return peers;
}

}  // namespace cachalot::transfer

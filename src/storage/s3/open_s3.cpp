#include "base/clock.h"
#include "storage/open_kinds.h"
#include "storage/s3/s3_backend.h"

namespace cachalot::storage {
namespace {

Status check_bucket(const StorageUri& uri, const std::string& bucket) {
  const bool is_bucket =
      bucket.size() >= 3 && bucket.size() <= 63 &&
      bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-") == std::string::npos;
  if (is_bucket) return {};
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": bucket \"%.70s\", expected 3 to 63 lower-case letters, "
                     "digits, \".\" and \"-\"",
                     uri.shown.c_str(), bucket.c_str());
}

Status check_endpoint(const StorageUri& uri, const std::string& endpoint) {
  const bool has_scheme = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  const bool is_bare = endpoint.find_first_of("?#@ ") == std::string::npos;
  if (endpoint.empty() || (has_scheme && is_bare && endpoint.size() > 8)) return {};
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": endpoint \"%.60s\", expected http://HOST:PORT or https://…",
                     uri.shown.c_str(), endpoint.c_str());
}

// A service that answers must have the bucket, and let it be listed. One that is down may do so later.
// @param options  their region becomes the one that the service names
Status check_is_there(S3Options& options) {
  constexpr std::uint64_t kPatienceNs = 3'000'000'000;
  S3Client client(options);
  S3Request page{.query = "list-type=2&max-keys=1"};
  client.run({&page, 1}, base::SteadyClock::read() + kPatienceNs);
  options.region = client.region();
  if (!page.status) return {};
  const Status outcome = client.outcome(page);
  const Code code = outcome ? Code::kIo : outcome.error().code;
  if (code == Code::kPermission || code == Code::kUnsupported) return outcome;
  if (page.code != 404) return {};
  return Error::make(Code::kIo, "s3 %.70s: there is no such bucket at %.120s; make it first",
                     options.bucket.c_str(),
                     options.endpoint.empty() ? "Amazon's" : options.endpoint.c_str());
}

}  // namespace

OpenedBackend open_s3(const StorageUri& uri, const BackendSecrets& secrets) {
  S3Options options;
  std::string_view place = uri.place;
  if (!place.starts_with("//")) {
    return Error::make(Code::kInvalidArgument, "storage \"%s\": expected s3://BUCKET",
                       uri.shown.c_str());
  }
  place.remove_prefix(2);
  const std::size_t slash = place.find('/');
  std::string prefix;
  if (slash != std::string_view::npos) {
    CACHALOT_TRY_ASSIGN(prefix, decode_percent(place.substr(slash + 1)));
    while (prefix.ends_with('/')) prefix.pop_back();
  }
  options.bucket = place.substr(0, slash);
  CACHALOT_TRY(check_bucket(uri, options.bucket));
  if (const std::string* const given = uri.find("endpoint")) options.endpoint = *given;
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  CACHALOT_TRY(check_endpoint(uri, options.endpoint));
  if (const std::string* const given = uri.find("region")) options.region = *given;
  CACHALOT_TRY_ASSIGN(const std::uint64_t connections,
                      uri.number("connections", options.most_connections, 1, 256));
  options.most_connections = static_cast<std::uint32_t>(connections);
  if (secrets.s3_access_key.empty() || secrets.s3_secret_key.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "storage \"%s\": needs an access key and a secret key "
                       "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
                       uri.shown.c_str());
  }
  options.access_key = secrets.s3_access_key;
  options.secret_key = secrets.s3_secret_key;
  options.session_token = secrets.s3_session_token;
  CACHALOT_TRY(check_is_there(options));
  return make_s3_backend(options, prefix);
}

}  // namespace cachalot::storage

#include <unistd.h>

#include <cerrno>

#include "base/clock.h"
#include "storage/backends.h"
#include "storage/open_kinds.h"
#include "storage/s3/s3_backend.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kPatienceNs = 3'000'000'000;

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

// A bucket with a dot has no certificate of Amazon's for its name, so it stands in the path.
Status read_style(const StorageUri& uri, S3Options& options) {
  const bool has_dot = options.bucket.find('.') != std::string::npos;
  options.style =
      options.endpoint.empty() && !has_dot ? S3Options::Style::kHost : S3Options::Style::kPath;
  const std::string* const given = uri.find("style");
  if (given == nullptr) return {};
  if (*given == "path" || *given == "host") {
    options.style = *given == "path" ? S3Options::Style::kPath : S3Options::Style::kHost;
    return {};
  }
  return Error::make(Code::kInvalidArgument,
                     "storage \"%s\": style is \"%.40s\", expected path or host", uri.shown.c_str(),
                     given->c_str());
}

// In the order of Amazon's own programs. The machine's metadata service is not asked unless the text says so.
Result<std::shared_ptr<S3KeySource>> find_keys(const StorageUri& uri, const BackendSecrets& secrets,
                                               const S3Options& options, Opening how) {
  const std::string* const profile = uri.find("profile");
  CACHALOT_TRY_ASSIGN(const bool is_of_instance, uri.flag("instance_keys", false));
  std::shared_ptr<S3KeySource> keys;
  if (is_of_instance) {
    keys = instance_keys(secrets.s3_metadata_endpoint.empty() ? "http://169.254.169.254"
                                                              : secrets.s3_metadata_endpoint);
  } else if (profile == nullptr && !secrets.s3_access_key.empty() &&
             !secrets.s3_secret_key.empty()) {
    keys = fixed_keys({secrets.s3_access_key, secrets.s3_secret_key, secrets.s3_session_token});
  } else if (profile == nullptr && !secrets.s3_web_token_file.empty() &&
             !secrets.s3_role_arn.empty()) {
    keys = web_keys(secrets.s3_web_token_file, secrets.s3_role_arn,
                    secrets.s3_sts_endpoint.empty()
                        ? "https://sts." + options.region + ".amazonaws.com"
                        : secrets.s3_sts_endpoint);
  } else if (profile != nullptr || ::access(secrets.s3_profile_file.c_str(), F_OK) == 0) {
    const std::string& name = profile != nullptr ? *profile : secrets.s3_profile;
    keys = profile_keys(secrets.s3_profile_file, name.empty() ? "default" : name);
  }
  if (keys == nullptr) {
    return Error::make(
        Code::kInvalidArgument,
        "storage \"%s\": has no keys; expected AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, %.80s, or ?instance_keys=1",
        uri.shown.c_str(),
        secrets.s3_profile_file.empty() ? "~/.aws/credentials" : secrets.s3_profile_file.c_str());
  }
  if (how == Opening::kOnlyChecked) return keys;
  // A file is there or not; a service may answer later.
  const Result<S3Keys> first = keys->take(base::SteadyClock::read() + kPatienceNs);
  const Code code = first ? Code::kIo : first.error().code;
  if (first || code == Code::kIo || code == Code::kTimeout) return keys;
  return first.error();
}

// A service that answers must have the bucket, and let it be listed. One that is down may do so later.
// @param options  their region becomes the one that the service names
Status check_is_there(S3Options& options) {
  S3Client client(options);
  S3Request page{.query = "list-type=2&max-keys=1"};
  client.run({&page, 1}, base::SteadyClock::read() + kPatienceNs);
  options.region = client.region();
  if (!page.status) {  // perhaps it is down; a wrong certificate stays so
    const bool is_foreign = page.status.error().code == Code::kPermission;
    return is_foreign ? page.status : Status();
  }
  const Status outcome = client.outcome(page);
  const Code code = outcome ? Code::kIo : outcome.error().code;
  if (code == Code::kPermission || code == Code::kUnsupported) return outcome;
  if (page.code != 404) return {};
  return Error::make(Code::kIo, "s3 %.70s: there is no such bucket at %.120s; make it first",
                     options.bucket.c_str(),
                     options.endpoint.empty() ? "Amazon's" : options.endpoint.c_str());
}

}  // namespace

OpenedBackend open_s3(const StorageUri& uri, const BackendSecrets& secrets, Opening how) {
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
  CACHALOT_TRY(read_style(uri, options));
  if (const std::string* const given = uri.find("ca")) options.ca = *given;
  if (!options.ca.empty() && ::access(options.ca.c_str(), R_OK) != 0)
    return Error::from_errno(errno, "storage \"%s\": ca file \"%.80s\"", uri.shown.c_str(),
                             options.ca.c_str());
  CACHALOT_TRY_ASSIGN(options.keys, find_keys(uri, secrets, options, how));
  if (how == Opening::kOnlyChecked) return std::unique_ptr<Backend>();
  CACHALOT_TRY(check_is_there(options));
  return make_s3_backend(options, prefix);
}

}  // namespace cachalot::storage

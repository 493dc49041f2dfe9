// Where the keys of an S3 service come from, and come from again when they end.
//
//   fixed       of the environment: for the life of the process
//   profile     of a file as ~/.aws/credentials: read again when it changes, or when its keys are refused
//   web         a token of a file (Kubernetes), for which the token service gives keys of some hours
//   instance    of the machine's metadata service (IMDSv2), of some hours
//
// Keys that end at a known time are renewed five minutes before.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

namespace cachalot::storage {

struct S3Keys {
  std::string access, secret, token;  // the last may be empty
  std::int64_t end_s = 0;             // of the system's clock; 0: not known

  bool is_same(const S3Keys& other) const {
    return access == other.access && secret == other.secret && token == other.token;
  }
};

class S3KeySource {
 public:
  virtual ~S3KeySource() = default;
  // Keys to sign with now. @errors why there are none
  virtual Result<S3Keys> take(std::uint64_t deadline_ns) = 0;
  // After the service has refused `refused`: the next take() looks for others.
  virtual void refuse(const S3Keys& refused) = 0;
};

std::unique_ptr<S3KeySource> fixed_keys(S3Keys keys);
// @errors of take() only, as of the next two. @param profile  "default"
std::unique_ptr<S3KeySource> profile_keys(std::string path, std::string profile);
// @param endpoint  of the token service: "https://sts.eu-west-7.amazonaws.com"
std::unique_ptr<S3KeySource> web_keys(std::string token_file, std::string role,
                                      std::string endpoint);
// @param endpoint  "http://169.254.169.254"
std::unique_ptr<S3KeySource> instance_keys(std::string endpoint);

// The keys of a profile in such a file. @errors kInvalidArgument: it has none of that name
Result<S3Keys> parse_profile(std::string_view text, std::string_view profile,
                             std::string_view path);

}  // namespace cachalot::storage

#include "storage/s3/keys.h"

#include <curl/curl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "storage/uri.h"

namespace cachalot::storage {
namespace {

constexpr std::int64_t kRenewBeforeS = 300;
constexpr std::size_t kMostFileBytes = 1 << 20, kMostAnswerBytes = 64 << 10;
constexpr std::uint64_t kMostWaitNs = 5'000'000'000;

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno(errno, "s3 keys: file %.140s", path.c_str());
  std::string text(kMostFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// What stands between two texts, after `from`.
std::string between(const std::string& text, std::string_view before, std::string_view after) {
  const std::size_t start = text.find(before);
  if (start == std::string::npos) return "";
  const std::size_t first = start + before.size(), end = text.find(after, first);
  return end == std::string::npos ? "" : text.substr(first, end - first);
}
// The string of a name in a flat JSON object.
std::string json_text(const std::string& json, const std::string& name) {
  const std::string rest = between(json + "}", "\"" + name + "\"", "}");
  return between(rest, "\"", "\"");
}

// "2026-11-28T12:00:00Z". @return 0: it is none
std::int64_t time_of(const std::string& text) {
  std::tm time{};
  return ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr ? 0 : ::timegm(&time);
}

// One small request. @param what  for messages
Result<std::string> ask_service(const char* what, const std::string& verb, const std::string& url,
                                const std::vector<std::string>& headers,
                                std::uint64_t deadline_ns) {
  const std::unique_ptr<CURL, void (*)(CURL*)> easy(curl_easy_init(), curl_easy_cleanup);
  curl_slist* list = nullptr;
  for (const std::string& header : headers) list = curl_slist_append(list, header.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> freed(list, curl_slist_free_all);
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::uint64_t left_ns =
      std::min(deadline_ns > now_ns ? deadline_ns - now_ns : 0, kMostWaitNs);
  std::string answer;
  const auto set = [&](CURLoption option, auto value) {
    (void)curl_easy_setopt(easy.get(), option, value);
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_CUSTOMREQUEST, verb.c_str());
  set(CURLOPT_HTTPHEADER, list);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(left_ns / 1'000'000 + 1));
  set(CURLOPT_WRITEDATA, &answer);
  set(
      CURLOPT_WRITEFUNCTION,
      +[](char* from, std::size_t, std::size_t bytes, void* to) -> std::size_t {
        auto& text = *static_cast<std::string*>(to);
        text.append(from, bytes);
        return text.size() <= kMostAnswerBytes ? bytes : 0;
      });
  const CURLcode result = curl_easy_perform(easy.get());
  long code = 0;
  (void)curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &code);
  if (result != CURLE_OK)
    return Error::make(Code::kIo, "s3 keys: %s: %.120s", what, curl_easy_strerror(result));
  if (code >= 200 && code < 300) return answer;
  const std::string why = between(answer, "<Code>", "</Code>");
  return Error::make(code >= 400 && code < 500 ? Code::kPermission : Code::kIo,
                     "s3 keys: %s: HTTP %ld%s%.80s", what, code, why.empty() ? "" : ", ",
                     why.c_str());
}

class Fixed final : public S3KeySource {
 public:
  explicit Fixed(S3Keys keys) : keys_(std::move(keys)) {}
  Result<S3Keys> take(std::uint64_t) override { return keys_; }
  void refuse(const S3Keys&) override {}

 private:
  const S3Keys keys_;
};

// Keys that are kept until they end, are refused, or something else says that they are old.
class Kept : public S3KeySource {
 public:
  Result<S3Keys> take(std::uint64_t deadline_ns) final {
    const std::lock_guard lock(mutex_);
    const bool is_ending = keys_ && keys_->end_s != 0 && keys_->end_s < now_s() + kRenewBeforeS;
    const bool is_over = !keys_ || (keys_->end_s != 0 && keys_->end_s <= now_s());
    const bool is_wanted = is_over || is_ending || is_refused_ || is_old();
    if (is_wanted && base::SteadyClock::read() >= next_fetch_ns_) {
      Result<S3Keys> fresh = fetch(deadline_ns);
      const std::uint64_t now_ns = base::SteadyClock::read();
      next_fetch_ns_ = fresh ? 0 : now_ns + (is_over ? kPauseNs : kLongPauseNs);
      if (fresh) {
        keys_ = *fresh;
        fetched_ns_ = now_ns;
        is_refused_ = false;
        return *keys_;
      }
      failure_ = fresh.error();
    }
    // Those that have not ended yet are better than none.
    if (is_over) return failure_;
    return *keys_;
  }
  // Keys that are refused as soon as they are given say that others would be, too.
  void refuse(const S3Keys& refused) final {
    const std::lock_guard lock(mutex_);
    if (base::SteadyClock::read() >= fetched_ns_ + kLongPauseNs)
      is_refused_ = is_refused_ || (keys_ && keys_->is_same(refused));
  }

 private:
  static constexpr std::uint64_t kPauseNs = 1'000'000'000, kLongPauseNs = 10'000'000'000;

  virtual Result<S3Keys> fetch(std::uint64_t deadline_ns) = 0;
  virtual bool is_old() { return false; }

  std::mutex mutex_;
  std::optional<S3Keys> keys_;
  bool is_refused_ = false;
  std::uint64_t fetched_ns_ = 0, next_fetch_ns_ = 0;
  Error failure_ = Error::make(Code::kIo, "s3 keys: none yet");
};

class Profile final : public Kept {
 public:
  Profile(std::string path, std::string profile)
      : path_(std::move(path)), profile_(std::move(profile)) {}

 private:
  // A file that is replaced has another inode, one that is written another time.
  struct Version {
    ino_t inode = 0;
    off_t bytes = 0;
    timespec time{};
    bool operator==(const Version& other) const {
      return inode == other.inode && bytes == other.bytes && time.tv_sec == other.time.tv_sec &&
             time.tv_nsec == other.time.tv_nsec;
    }
  };
  Version version() const {
    struct stat found {};
    if (::stat(path_.c_str(), &found) != 0) return {};
    return {found.st_ino, found.st_size, found.st_mtim};
  }
  bool is_old() override { return !(version() == read_); }
  Result<S3Keys> fetch(std::uint64_t) override {
    read_ = version();
    CACHALOT_TRY_ASSIGN(const std::string text, read_text(path_));
    return parse_profile(text, profile_, path_);
  }

  const std::string path_, profile_;
  Version read_;
};

// Keys that a service gives. An answer without them is an error.
Result<S3Keys> checked(S3Keys keys, const char* what) {
  if (!keys.access.empty() && !keys.secret.empty()) return keys;
  return Error::make(Code::kIo, "s3 keys: %s: an answer without keys", what);
}

class Web final : public Kept {
 public:
  Web(std::string token_file, std::string role, std::string endpoint)
      : token_file_(std::move(token_file)),
        role_(std::move(role)),
        endpoint_(std::move(endpoint)) {}

 private:
  Result<S3Keys> fetch(std::uint64_t deadline_ns) override {
    constexpr const char* kWhat = "the token service";
    CACHALOT_TRY_ASSIGN(const std::string token, read_text(token_file_));
    const std::string url = endpoint_ +
                            "/?Action=AssumeRoleWithWebIdentity&Version=2011-06-15"
                            "&RoleSessionName=cachalot&RoleArn=" +
                            encode_percent(role_, false) +
                            "&WebIdentityToken=" + encode_percent(trimmed(token), false);
    CACHALOT_TRY_ASSIGN(const std::string xml, ask_service(kWhat, "GET", url, {}, deadline_ns));
    return checked(
        {between(xml, "<AccessKeyId>", "<"), between(xml, "<SecretAccessKey>", "<"),
         between(xml, "<SessionToken>", "<"), time_of(between(xml, "<Expiration>", "<"))},
        kWhat);
  }

  const std::string token_file_, role_, endpoint_;
};

class Instance final : public Kept {
 public:
  explicit Instance(std::string endpoint) : endpoint_(std::move(endpoint)) {}

 private:
  Result<S3Keys> fetch(std::uint64_t deadline_ns) override {
    constexpr const char* kWhat = "the machine's metadata service";
    CACHALOT_TRY_ASSIGN(const std::string token,
                        ask_service(kWhat, "PUT", endpoint_ + "/latest/api/token",
                                    {"X-aws-ec2-metadata-token-ttl-seconds: 300"}, deadline_ns));
    const std::vector<std::string> headers{"X-aws-ec2-metadata-token: " +
                                           std::string(trimmed(token))};
    const std::string folder = endpoint_ + "/latest/meta-data/iam/security-credentials/";
    CACHALOT_TRY_ASSIGN(const std::string roles,
                        ask_service(kWhat, "GET", folder, headers, deadline_ns));
    const std::string role(trimmed(roles.substr(0, roles.find('\n'))));
    CACHALOT_TRY_ASSIGN(
        const std::string json,
        ask_service(kWhat, "GET", folder + encode_percent(role, false), headers, deadline_ns));
    return checked({json_text(json, "AccessKeyId"), json_text(json, "SecretAccessKey"),
                    json_text(json, "Token"), time_of(json_text(json, "Expiration"))},
                   kWhat);
  }

  const std::string endpoint_;
};

}  // namespace

Result<S3Keys> parse_profile(std::string_view text, std::string_view profile,
                             std::string_view path) {
  S3Keys keys;
  bool is_in = false, is_there = false;
  std::istringstream lines{std::string(text)};
  for (std::string raw; std::getline(lines, raw);) {
    const std::string_view line = trimmed(raw);
    if (line.starts_with('[')) {
      std::string_view name = trimmed(line.substr(1, line.find(']') - 1));
      if (name.starts_with("profile ")) name = trimmed(name.substr(8));
      is_in = name == profile;
      is_there = is_there || is_in;
    }
    const std::size_t equals = line.find('=');
    if (!is_in || line.starts_with('#') || line.starts_with(';') ||
        equals == std::string_view::npos)
      continue;
    const std::string_view name = trimmed(line.substr(0, equals));
    const std::string value(trimmed(line.substr(equals + 1)));
    if (name == "aws_access_key_id") keys.access = value;
    if (name == "aws_secret_access_key") keys.secret = value;
    if (name == "aws_session_token") keys.token = value;
  }
  if (!keys.access.empty() && !keys.secret.empty()) return keys;
  return Error::make(
      Code::kInvalidArgument, "s3 keys: file %.120s: profile \"%.40s\" %s",
      std::string(path).c_str(), std::string(profile).c_str(),
      is_there ? "has no aws_access_key_id and aws_secret_access_key" : "is not in it");
}

std::unique_ptr<S3KeySource> fixed_keys(S3Keys keys) {
  return std::make_unique<Fixed>(std::move(keys));
}
std::unique_ptr<S3KeySource> profile_keys(std::string path, std::string profile) {
  return std::make_unique<Profile>(std::move(path), std::move(profile));
}
std::unique_ptr<S3KeySource> web_keys(std::string token_file, std::string role,
                                      std::string endpoint) {
  return std::make_unique<Web>(std::move(token_file), std::move(role), std::move(endpoint));
}
std::unique_ptr<S3KeySource> instance_keys(std::string endpoint) {
  return std::make_unique<Instance>(std::move(endpoint));
}

}  // namespace cachalot::storage

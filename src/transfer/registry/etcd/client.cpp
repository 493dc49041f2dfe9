#include "transfer/registry/etcd/client.h"

#include <curl/curl.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kMostAnswerBytes = 32u << 20;

// Of gRPC, as etcd's gateway has them in its errors.
enum GrpcCode {
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kUnavailable = 14,
  kUnauthenticated = 16
};

void init_curl() {
  static std::once_flag once;
  std::call_once(once, [] { (void)curl_global_init(CURL_GLOBAL_DEFAULT); });
}

std::uint64_t ms_until(std::uint64_t deadline_ns) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  return deadline_ns > now_ns ? (deadline_ns - now_ns + 999'999) / 1'000'000 : 0;
}

curl_slist* json_header() {
  // Without "Expect", large bodies are not announced first.
  return curl_slist_append(curl_slist_append(nullptr, "Content-Type: application/json"), "Expect:");
}

}  // namespace

struct EtcdClient::FreeEasy {
  void operator()(void* easy) const { curl_easy_cleanup(easy); }
};

struct EtcdClient::Answer {
  Status status = {};
  bool is_from_etcd = false;  // else another endpoint may answer
  std::string text = {};
};

EtcdClient::EtcdClient(std::vector<std::string> endpoints, EtcdTls tls)
    : endpoints_(std::move(endpoints)), tls_(std::move(tls)) {
  init_curl();
}
EtcdClient::~EtcdClient() = default;

EtcdClient::Easy EtcdClient::take_easy() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return Easy(curl_easy_init());
  Easy easy = std::move(idle_.back());
  idle_.pop_back();
  return easy;
}

namespace {

// What an HTTP status other than 200 means; the body has gRPC's code.
Status refusal(long http, const std::string& endpoint, const std::string& text, bool& is_final) {
  const nlohmann::json body = nlohmann::json::parse(text, nullptr, false);
  const auto find = [&](const char* name) {
    return body.is_object() ? body.find(name) : body.end();
  };
  int grpc = 0;
  std::string message;
  if (const auto at = find("code"); at != body.end() && at->is_number_integer())
    grpc = at->get<int>();
  if (const auto at = find("error"); at != body.end() && at->is_string())
    message = at->get<std::string>();
  is_final = grpc != 0 && grpc != kUnavailable && grpc != kDeadlineExceeded;
  Code code = Code::kIo;
  if (grpc == kNotFound) code = Code::kNotFound;
  if (grpc == kPermissionDenied || grpc == kUnauthenticated) code = Code::kPermission;
  if (grpc == kResourceExhausted) code = Code::kNoSpace;
  if (grpc == kDeadlineExceeded) code = Code::kTimeout;
  return Error::make(code, "registry etcd://%.60s: HTTP %ld %.120s", endpoint.c_str(), http,
                     message.c_str());
}

}  // namespace

EtcdClient::Answer EtcdClient::ask(const std::string& endpoint, const std::string& path,
                                   const std::string& body, std::uint64_t timeout_ms) {
  Answer answer;
  Easy easy = take_easy();
  char why[CURL_ERROR_SIZE] = {};
  const std::string url = (tls_.is_used ? "https://" : "http://") + endpoint + path;
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(json_header(),
                                                                   &curl_slist_free_all);
  const auto set = [&](CURLoption option, auto value) {
    (void)curl_easy_setopt(easy.get(), option, value);
  };
  curl_easy_reset(easy.get());
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  set(CURLOPT_QUICK_EXIT, 1L);  // a resolver that hangs must not delay a call
#endif
  for (const auto& [option, file] : {std::pair{CURLOPT_CAINFO, &tls_.ca_file},
                                     {CURLOPT_SSLCERT, &tls_.cert_file},
                                     {CURLOPT_SSLKEY, &tls_.key_file}}) {
    if (!file->empty()) set(option, file->c_str());
  }
  set(CURLOPT_NOPROXY, "*");  // a library reads no environment variables
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(timeout_ms));
  set(CURLOPT_TCP_NODELAY, 1L);
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  set(CURLOPT_POSTFIELDS, body.data());
  set(CURLOPT_ERRORBUFFER, why);
  set(CURLOPT_WRITEDATA, &answer.text);
  set(
      CURLOPT_WRITEFUNCTION,
      +[](char* from, std::size_t, std::size_t bytes, void* to) -> std::size_t {
        auto& text = *static_cast<std::string*>(to);
        if (bytes > kMostAnswerBytes - text.size()) return 0;  // ends the transfer
        text.append(from, bytes);
        return bytes;
      });
  const CURLcode result = curl_easy_perform(easy.get());
  long http = 0;
  (void)curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &http);
  if (result == CURLE_WRITE_ERROR) {
    answer.is_from_etcd = true;
    answer.status =
        Error::make(Code::kIo, "registry etcd://%.60s: an answer of more than %zu bytes",
                    endpoint.c_str(), kMostAnswerBytes);
  } else if (result != CURLE_OK) {
    answer.status = Error::make(result == CURLE_OPERATION_TIMEDOUT ? Code::kTimeout : Code::kIo,
                                "registry etcd://%.60s: %.120s", endpoint.c_str(),
                                why[0] != '\0' ? why : curl_easy_strerror(result));
  } else if (http != 200) {
    answer.status = refusal(http, endpoint, answer.text, answer.is_from_etcd);
  } else {
    answer.is_from_etcd = true;
  }
  (void)curl_easy_setopt(easy.get(), CURLOPT_ERRORBUFFER, nullptr);
  if (result == CURLE_OK) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(easy));
  }
  return answer;
}

Result<std::string> EtcdClient::post(const std::string& path, const std::string& body,
                                     std::uint64_t deadline_ns) {
  const std::size_t first = preferred_.load(std::memory_order_relaxed), count = endpoints_.size();
  Status last = Error::make(Code::kTimeout, "registry etcd://%.60s: the deadline is over",
                            endpoints_[first].c_str());
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t left = ms_until(deadline_ns);
    if (left == 0) break;
    const std::size_t at = (first + i) % count;
    Answer answer = ask(endpoints_[at], path, body, std::max<std::uint64_t>(left / (count - i), 1));
    if (answer.is_from_etcd) preferred_.store(at, std::memory_order_relaxed);
    if (answer.status) return std::move(answer.text);
    last = answer.status;
    if (answer.is_from_etcd) break;
  }
  return last.error();
}

}  // namespace cachalot::transfer

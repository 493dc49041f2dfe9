#include "storage/s3/client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::storage {
namespace {

constexpr std::size_t kAnswerBytes = 4096;
constexpr std::uint64_t kLongestPollMs = 1000;
constexpr long kContinueMs = 200;

void init_curl() {
  static std::once_flag once;
  std::call_once(once, [] { (void)curl_global_init(CURL_GLOBAL_DEFAULT); });
}

std::uint64_t left_ms(std::uint64_t deadline_ns) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  return deadline_ns > now_ns ? (deadline_ns - now_ns + 999'999) / 1'000'000 : 0;
}

// The text of <Code>, or of another element, in an S3 error.
std::string element_of(const std::string& answer, const std::string& name) {
  const std::size_t start = answer.find("<" + name + ">"), end = answer.find("</" + name + ">");
  if (start == std::string::npos || end == std::string::npos || end < start) return "";
  const std::size_t text = start + name.size() + 2;
  return answer.substr(text, end - text);
}

const char* name_of(S3Request::Verb verb) {
  constexpr const char* kNames[] = {"GET", "HEAD", "PUT", "DELETE"};
  return kNames[static_cast<int>(verb)];
}

// What an S3 error means for the operator.
struct Meaning {
  const char* name;
  Code code;
  const char* text;
};
constexpr Meaning kMeanings[] = {
    {"ExpiredToken", Code::kPermission, "the session token has ended"},
    {"InvalidToken", Code::kPermission, "the session token does not belong to the access key"},
    {"InvalidAccessKeyId", Code::kPermission, "the service does not know the access key"},
    {"SignatureDoesNotMatch", Code::kPermission,
     "the secret key does not belong to the access key"},
    {"RequestTimeTooSkewed", Code::kPermission,
     "the clocks of this machine and of the service differ too much"},
    {"AccessDenied", Code::kPermission, "the keys do not allow this"},
    {"AllAccessDisabled", Code::kPermission, "the service has closed the bucket"},
    {"NoSuchBucket", Code::kIo, "there is no such bucket"},
    {"PermanentRedirect", Code::kUnsupported, "the bucket is in another region"},
    {"TemporaryRedirect", Code::kUnsupported, "the bucket is in another region"},
    {"AuthorizationHeaderMalformed", Code::kPermission,
     "the access key or the region is not what the service expects"},
    {"IllegalLocationConstraintException", Code::kUnsupported, "the bucket is in another region"},
};

const Meaning* meaning_of(const std::string& error) {
  const Meaning* const at = std::find_if(std::begin(kMeanings), std::end(kMeanings),
                                         [&](const Meaning& one) { return one.name == error; });
  return at == std::end(kMeanings) ? nullptr : at;
}

// Only a name that is safe in a host's name.
bool is_region(std::string_view text) {
  return !text.empty() && text.size() <= 40 &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

// "https://bucket.s3.eu-west-7.amazonaws.com/…" and "https://bucket.s3-eu-west-7.amazonaws.com/…"
std::string region_of_location(std::string_view url) {
  const std::size_t end = url.find(".amazonaws.com");
  const std::size_t start = std::min(url.find(".s3"), url.find("/s3"));
  if (end == std::string_view::npos || start == std::string_view::npos || end < start + 5)
    return "";
  return std::string(url.substr(start + 4, end - start - 4));
}

// The value of a header line with this name (in lower case), or "".
std::string header_value(std::string_view line, std::string_view name) {
  if (line.size() <= name.size() || line[name.size()] != ':') return "";
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(line[i])) != name[i]) return "";
  }
  line.remove_prefix(name.size() + 1);
  const std::size_t first = line.find_first_not_of(" \t");
  const std::size_t last = line.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : std::string(line.substr(first, last - first + 1));
}

// What the same request may be answered otherwise a moment later.
bool may_be_sent_again(const S3Request& request) {
  switch (request.code) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    // Of a put with a condition: another one of the same object is in flight.
    case 409:
      return request.verb == S3Request::Verb::kPut;
    case 400:
      return element_of(request.answer, "Code") == "RequestTimeout";
    default:
      return false;
  }
}
bool is_reset(int result) {
  return result == CURLE_SEND_ERROR || result == CURLE_RECV_ERROR || result == CURLE_GOT_NOTHING ||
         result == CURLE_PARTIAL_FILE;
}

}  // namespace

// --- One request -----------------------------------------------------------------------------------

struct S3Client::FreeMulti {
  void operator()(void* multi) const { (void)curl_multi_cleanup(multi); }
};

// A request on its way, with what libcurl holds of it.
struct S3Client::Transfer {
  Transfer(const Try& of, std::string its_region, S3Keys its_keys)
      : request(*of.request),
        tries(of.count + 1),
        region(std::move(its_region)),
        keys(std::move(its_keys)),
        easy(curl_easy_init()) {}
  ~Transfer() {
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  std::size_t read(char* to, std::size_t room) {
    std::size_t done = 0, skip = sent;
    const auto copy = [&](const void* from, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      const std::size_t some = std::min(bytes - skipped, room - done);
      std::memcpy(to + done, static_cast<const char*>(from) + skipped, some);
      done += some;
    };
    if (sent < request.start.size())
      copy(request.start.data(), request.start.size());
    else
      skip -= request.start.size();
    for (const Bytes& piece : request.body) {
      if (done == room) break;
      copy(piece.data(), piece.size());
    }
    sent += done;
    return done;
  }
  // @return false: the transfer ends
  bool write(const char* from, std::size_t bytes) {
    long code = 0;
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    if (request.take && code >= 200 && code < 300) {
      has_taken = true;
      is_enough = !request.take(std::as_bytes(std::span(from, bytes)));
      return !is_enough;
    }
    if (request.answer.size() < kAnswerBytes)
      request.answer.append(from, std::min(bytes, kAnswerBytes - request.answer.size()));
    answer_bytes += bytes;
    return answer_bytes <= kMostAnswerBytes;
  }
  // Answers before the answer (1xx) count as larger than they are: each takes a round of its own, some milliseconds.
  bool write_header(std::string_view line) {
    constexpr std::size_t kAnswerCost = 2048;
    header_bytes += line.size() + (line.starts_with("HTTP/") ? kAnswerCost : 0);
    for (std::string named : {header_value(line, "x-amz-bucket-region"),
                              region_of_location(header_value(line, "location"))}) {
      if (is_region(named)) request.region = std::move(named);
    }
    return header_bytes <= kMostHeaderBytes;
  }
  void add_header(const std::string& line) { headers = curl_slist_append(headers, line.c_str()); }

  S3Request& request;
  const unsigned tries;      // with this one
  const std::string region;  // that it is signed for
  const S3Keys keys;
  CURL* easy;
  curl_slist* headers = nullptr;
  std::size_t sent = 0, answer_bytes = 0, header_bytes = 0;
  bool has_taken = false;  // bytes of an answer
  bool is_enough = false;  // the request has what it wanted
  char error[CURL_ERROR_SIZE] = {};
};

std::string S3Client::url_of(const S3Request& request, const std::string& region) const {
  std::string endpoint = options_.endpoint;
  if (endpoint.empty())
    endpoint = "https://s3." + region + ".amazonaws.com" + (region.starts_with("cn-") ? ".cn" : "");
  const bool is_host = options_.style == S3Options::Style::kHost;
  if (is_host) endpoint.insert(endpoint.find("://") + 3, options_.bucket + ".");
  std::string url = endpoint + "/" + (is_host ? "" : options_.bucket + "/");
  url += encode_percent(request.name, true);
  return request.query.empty() ? url : url + "?" + request.query;
}

std::unique_ptr<S3Client::Transfer> S3Client::start(const Try& one,
                                                    std::uint64_t deadline_ns) const {
  S3Request& request = *one.request;
  S3Keys keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  auto transfer = std::make_unique<Transfer>(one, region(), std::move(keys));
  CURL* const easy = transfer->easy;
  const std::string url = url_of(request, transfer->region);
  for (const std::string& line : request.headers) transfer->add_header(line);
  // Bodies are not hashed twice: Store's seal, or AES-GCM, tells of a changed one.
  transfer->add_header("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!transfer->keys.token.empty())
    transfer->add_header("x-amz-security-token: " + transfer->keys.token);
  const auto set = [&](CURLoption option, auto value) {
    (void)curl_easy_setopt(easy, option, value);
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  set(CURLOPT_QUICK_EXIT, 1L);  // a resolver that hangs must not delay a call
#endif
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::uint64_t>(left_ms(deadline_ns), 1)));
  set(CURLOPT_TCP_NODELAY, 1L);
  // Large puts ask first, so that an object that is there already is not sent. (A header "Expect:" that turns it off
  // would be signed and not sent.)
  set(CURLOPT_EXPECT_100_TIMEOUT_MS, kContinueMs);
  set(CURLOPT_AWS_SIGV4, ("aws:amz:" + transfer->region + ":s3").c_str());
  set(CURLOPT_USERNAME, transfer->keys.access.c_str());
  set(CURLOPT_PASSWORD, transfer->keys.secret.c_str());
  if (!options_.ca.empty()) set(CURLOPT_CAINFO, options_.ca.c_str());
  set(CURLOPT_HTTPHEADER, transfer->headers);
  set(CURLOPT_ERRORBUFFER, transfer->error);
  set(CURLOPT_PRIVATE, transfer.get());
  set(CURLOPT_WRITEDATA, transfer.get());
  set(
      CURLOPT_WRITEFUNCTION,
      +[](char* from, std::size_t, std::size_t bytes, void* to) -> std::size_t {
        return static_cast<Transfer*>(to)->write(from, bytes) ? bytes : 0;
      });
  set(CURLOPT_HEADERDATA, transfer.get());
  set(
      CURLOPT_HEADERFUNCTION,
      +[](char* from, std::size_t, std::size_t bytes, void* to) -> std::size_t {
        return static_cast<Transfer*>(to)->write_header({from, bytes}) ? bytes : 0;
      });
  if (request.verb == S3Request::Verb::kHead) set(CURLOPT_NOBODY, 1L);
  if (request.verb == S3Request::Verb::kDelete) set(CURLOPT_CUSTOMREQUEST, "DELETE");
  if (request.verb == S3Request::Verb::kPut) {
    std::uint64_t bytes = request.start.size();
    for (const Bytes& piece : request.body) bytes += piece.size();
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes));
    set(CURLOPT_READDATA, transfer.get());
    set(
        CURLOPT_READFUNCTION,
        +[](char* to, std::size_t, std::size_t room, void* from) -> std::size_t {
          return static_cast<Transfer*>(from)->read(to, room);
        });
    // A connection that was closed while it was idle is tried again from the first byte.
    set(CURLOPT_SEEKDATA, transfer.get());
    set(
        CURLOPT_SEEKFUNCTION, +[](void* from, curl_off_t offset, int) -> int {
          static_cast<Transfer*>(from)->sent = static_cast<std::size_t>(offset);
          return CURL_SEEKFUNC_OK;
        });
  }
  request.status = {};
  request.code = 0;
  request.answer.clear();
  request.region.clear();
  return transfer;
}

// --- Many requests ---------------------------------------------------------------------------------

S3Client::S3Client(S3Options options) : options_(std::move(options)), region_(options_.region) {
  init_curl();
  if (options_.keys == nullptr) {
    options_.keys = fixed_keys({options_.access_key, options_.secret_key, options_.session_token});
  }
}
S3Client::~S3Client() = default;

std::string S3Client::region() const {
  const std::lock_guard lock(mutex_);
  return region_;
}

// Whether the service named another region than the request was signed for. It is used from now on.
bool S3Client::follow_region(const Transfer& transfer) {
  const S3Request& request = transfer.request;
  const bool is_elsewhere = request.code == 301 || request.code == 307 || request.code == 400;
  if (!is_elsewhere || request.region.empty() || request.region == transfer.region) return false;
  const std::lock_guard lock(mutex_);
  if (region_ == request.region) return true;  // another request has learned it
  region_ = request.region;
  if (region_line_.is_due()) {
    base::log(base::LogLevel::kWarn, "storage", "s3 %.60s: is in the region %s, not %s; %s is used",
              options_.bucket.c_str(), region_.c_str(), transfer.region.c_str(), region_.c_str());
  }
  return true;
}

Status S3Client::take_keys(std::uint64_t deadline_ns) {
  CACHALOT_TRY_ASSIGN(S3Keys keys, options_.keys->take(deadline_ns));
  const std::lock_guard lock(mutex_);
  keys_ = std::move(keys);
  return {};
}

// Whether the service refused the keys, and there are others.
bool S3Client::has_other_keys(const Transfer& transfer, std::uint64_t deadline_ns) {
  if (transfer.request.code != 400 && transfer.request.code != 403) return false;
  const std::string why = element_of(transfer.request.answer, "Code");
  constexpr std::string_view kEnded[] = {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId",
                                         "SignatureDoesNotMatch", "TokenRefreshRequired"};
  if (std::find(std::begin(kEnded), std::end(kEnded), why) == std::end(kEnded)) return false;
  options_.keys->refuse(transfer.keys);
  if (!take_keys(deadline_ns)) return false;
  const std::lock_guard lock(mutex_);
  return !keys_.is_same(transfer.keys);
}

// When it is to be tried again, if at all.
std::optional<std::uint64_t> S3Client::next_try(const Transfer& transfer, int result,
                                                std::uint64_t deadline_ns) {
  const S3Request& request = transfer.request;
  const bool is_lost = transfer.has_taken && !request.restart;
  if (transfer.tries >= Backoff::kMostTries || transfer.is_enough || is_lost) return {};
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (result == CURLE_OK && (follow_region(transfer) || has_other_keys(transfer, deadline_ns)))
    return now_ns;
  if (!is_reset(result) && !(result == CURLE_OK && may_be_sent_again(request))) return {};
  const std::lock_guard lock(mutex_);
  return now_ns + backoff_.next_ns(transfer.tries);
}

S3Client::Multi S3Client::take_multi() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Multi multi = std::move(idle_.back());
      idle_.pop_back();
      return multi;
    }
  }
  Multi multi(curl_multi_init());
  (void)curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS,
                          static_cast<long>(options_.most_connections));
  return multi;
}

// Takes what has ended out of `running`, and queues what is to be tried again.
void S3Client::finish_some(void* multi, std::vector<std::unique_ptr<Transfer>>& running,
                           Queue& queue, std::uint64_t deadline_ns) {
  int more = 0;
  while (const CURLMsg* const message = curl_multi_info_read(multi, &more)) {
    if (message->msg != CURLMSG_DONE) continue;
    Transfer* transfer = nullptr;
    (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
    S3Request& request = transfer->request;
    const CURLcode result = message->data.result;
    (void)curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &request.code);
    if (result == CURLE_WRITE_ERROR && !transfer->is_enough) {
      request.status =
          Error::make(Code::kIo, "s3 %.60s: more than %zu bytes of %s, which nothing has asked for",
                      options_.bucket.c_str(), kMostAnswerBytes,
                      transfer->header_bytes > kMostHeaderBytes ? "headers" : "an answer");
    } else if (result != CURLE_OK && !transfer->is_enough) {
      Code code = result == CURLE_OPERATION_TIMEDOUT ? Code::kTimeout : Code::kIo;
      if (result == CURLE_PEER_FAILED_VERIFICATION) code = Code::kPermission;
      request.status =
          Error::make(code, "s3 %.60s: %.140s", options_.bucket.c_str(),
                      transfer->error[0] != '\0' ? transfer->error : curl_easy_strerror(result));
    }
    if (request.region.empty()) {
      if (std::string named = element_of(request.answer, "Region"); is_region(named))
        request.region = std::move(named);
    }
    const std::optional<std::uint64_t> again_ns = next_try(*transfer, result, deadline_ns);
    if (again_ns && *again_ns < deadline_ns) {
      if (transfer->has_taken) request.restart();
      queue.emplace(*again_ns, Try{&request, transfer->tries});
    }
    (void)curl_multi_remove_handle(multi, transfer->easy);
    std::erase_if(running, [&](const auto& one) { return one.get() == transfer; });
  }
}

void S3Client::run(std::span<S3Request> requests, std::uint64_t deadline_ns) {
  if (requests.empty()) return;
  if (const Status keys = take_keys(deadline_ns); !keys) {
    for (S3Request& request : requests) request.status = keys;
    return;
  }
  Multi multi = take_multi();
  std::vector<std::unique_ptr<Transfer>> running;
  Queue queue;
  for (S3Request& request : requests) queue.emplace(0, Try{&request, 0});
  const std::size_t most = options_.most_connections;
  const auto may_start = [&] {
    return running.size() < most && !queue.empty() &&
           queue.begin()->first <= base::SteadyClock::read();
  };
  while (true) {
    while (may_start()) {
      running.push_back(start(queue.extract(queue.begin()).mapped(), deadline_ns));
      (void)curl_multi_add_handle(multi.get(), running.back()->easy);
    }
    int count = 0;
    (void)curl_multi_perform(multi.get(), &count);
    finish_some(multi.get(), running, queue, deadline_ns);
    if (running.empty() && queue.empty()) break;
    std::uint64_t wait_ms = std::min(left_ms(deadline_ns), kLongestPollMs);
    if (wait_ms == 0 || cancel_->is_raised()) break;
    if (running.size() < most && !queue.empty())
      wait_ms = std::min(wait_ms, left_ms(queue.begin()->first));
    if (wait_ms == 0) continue;
    curl_waitfd cancel{cancel_->fd(), CURL_WAIT_POLLIN, 0};
    (void)curl_multi_poll(multi.get(), &cancel, cancel.fd >= 0 ? 1 : 0, static_cast<int>(wait_ms),
                          nullptr);
  }
  const bool is_late = !running.empty() || !queue.empty();
  const char* const bucket = options_.bucket.c_str();
  const Error late =
      cancel_->is_raised()
          ? Error::make(Code::kCancelled, "s3 %.60s: the call was cancelled", bucket)
          : Error::make(Code::kTimeout, "s3 %.60s: no answer before the deadline", bucket);
  for (const std::unique_ptr<Transfer>& transfer : running) {
    (void)curl_multi_remove_handle(multi.get(), transfer->easy);
    transfer->request.status = late;
  }
  for (const auto& [start_ns, one] : queue) one.request->status = late;
  if (is_late) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(multi));
}

Status S3Client::outcome(const S3Request& request) const {
  CACHALOT_TRY(request.status);
  if (request.is_success()) return {};
  const std::string why = element_of(request.answer, "Code");
  const Meaning* const meaning = meaning_of(why);
  Code code = Code::kIo;
  if (request.code == 404) code = Code::kNotFound;
  if (request.code == 301 || request.code == 307) code = Code::kUnsupported;
  if (request.code == 401 || request.code == 403) code = Code::kPermission;
  if (request.code == 429 || request.code == 503) code = Code::kBusy;
  if (request.code == 507) code = Code::kNoSpace;
  if (meaning != nullptr) code = meaning->code;
  std::string text = why.substr(0, 80);
  if (meaning != nullptr) text += std::string(": ") + meaning->text;
  if (code == Code::kUnsupported) {
    text += request.region.empty() ? ", which the service does not name"
                                   : ", " + request.region + ", and the endpoint does not serve it";
    text += "; expected its ?region= and endpoint";
  }
  return Error::make(code, "s3 %.60s: %s: HTTP %ld%s%s", options_.bucket.c_str(),
                     name_of(request.verb), request.code, text.empty() ? "" : ", ", text.c_str());
}

}  // namespace cachalot::storage

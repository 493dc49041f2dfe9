#include "storage/s3/client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

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

// The text of <Code> in an S3 error.
std::string error_code_of(const std::string& answer) {
  const std::size_t start = answer.find("<Code>"), end = answer.find("</Code>");
  if (start == std::string::npos || end == std::string::npos || end < start) return "";
  return answer.substr(start + 6, end - start - 6);
}

}  // namespace

// --- One request -----------------------------------------------------------------------------------

struct S3Client::FreeMulti {
  void operator()(void* multi) const { (void)curl_multi_cleanup(multi); }
};

// A request on its way, with what libcurl holds of it.
struct S3Client::Transfer {
  explicit Transfer(S3Request& of) : request(of), easy(curl_easy_init()) {}
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
    return header_bytes <= kMostHeaderBytes;
  }
  void add_header(const std::string& line) { headers = curl_slist_append(headers, line.c_str()); }

  S3Request& request;
  CURL* easy;
  curl_slist* headers = nullptr;
  std::size_t sent = 0, answer_bytes = 0, header_bytes = 0;
  bool is_enough = false;  // the request has what it wanted
  char error[CURL_ERROR_SIZE] = {};
};

std::unique_ptr<S3Client::Transfer> S3Client::start(S3Request& request,
                                                    std::uint64_t deadline_ns) const {
  auto transfer = std::make_unique<Transfer>(request);
  CURL* const easy = transfer->easy;
  std::string url = base_ + encode_percent(request.name, true);
  if (!request.query.empty()) url += "?" + request.query;
  for (const std::string& line : request.headers) transfer->add_header(line);
  // Bodies are not hashed twice: Store's seal, or AES-GCM, tells of a changed one.
  transfer->add_header("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!options_.session_token.empty())
    transfer->add_header("x-amz-security-token: " + options_.session_token);
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
  set(CURLOPT_AWS_SIGV4, ("aws:amz:" + options_.region + ":s3").c_str());
  set(CURLOPT_USERNAME, options_.access_key.c_str());
  set(CURLOPT_PASSWORD, options_.secret_key.c_str());
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
  return transfer;
}

// --- Many requests ---------------------------------------------------------------------------------

S3Client::S3Client(S3Options options) : options_(std::move(options)) {
  init_curl();
  base_ = options_.endpoint.empty()
              ? "https://" + options_.bucket + ".s3." + options_.region + ".amazonaws.com/"
              : options_.endpoint + "/" + options_.bucket + "/";
}
S3Client::~S3Client() = default;

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

// Takes what has ended out of `running`.
void S3Client::finish_some(void* multi, std::vector<std::unique_ptr<Transfer>>& running) const {
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
      request.status =
          Error::make(result == CURLE_OPERATION_TIMEDOUT ? Code::kTimeout : Code::kIo,
                      "s3 %.60s: %.140s", options_.bucket.c_str(),
                      transfer->error[0] != '\0' ? transfer->error : curl_easy_strerror(result));
    }
    (void)curl_multi_remove_handle(multi, transfer->easy);
    std::erase_if(running, [&](const auto& one) { return one.get() == transfer; });
  }
}

void S3Client::run(std::span<S3Request> requests, std::uint64_t deadline_ns) {
  if (requests.empty()) return;
  Multi multi = take_multi();
  std::vector<std::unique_ptr<Transfer>> running;
  std::size_t next = 0;
  while (true) {
    while (next < requests.size() && running.size() < options_.most_connections) {
      running.push_back(start(requests[next++], deadline_ns));
      (void)curl_multi_add_handle(multi.get(), running.back()->easy);
    }
    int count = 0;
    (void)curl_multi_perform(multi.get(), &count);
    finish_some(multi.get(), running);
    if (running.empty() && next == requests.size()) break;
    const std::uint64_t left = left_ms(deadline_ns);
    if (left == 0 || cancel_->is_raised()) break;
    if (running.size() == options_.most_connections || next == requests.size()) {
      curl_waitfd cancel{cancel_->fd(), CURL_WAIT_POLLIN, 0};
      (void)curl_multi_poll(multi.get(), &cancel, cancel.fd >= 0 ? 1 : 0,
                            static_cast<int>(std::min(left, kLongestPollMs)), nullptr);
    }
  }
  const bool is_late = !running.empty() || next != requests.size();
  const char* const bucket = options_.bucket.c_str();
  const Error late =
      cancel_->is_raised()
          ? Error::make(Code::kCancelled, "s3 %.60s: the call was cancelled", bucket)
          : Error::make(Code::kTimeout, "s3 %.60s: no answer before the deadline", bucket);
  for (const std::unique_ptr<Transfer>& transfer : running) {
    (void)curl_multi_remove_handle(multi.get(), transfer->easy);
    transfer->request.status = late;
  }
  for (S3Request& request : requests.subspan(next)) request.status = late;
  if (is_late) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(multi));
}

Status S3Client::outcome(const S3Request& request) const {
  CACHALOT_TRY(request.status);
  if (request.is_success()) return {};
  const std::string why = error_code_of(request.answer);
  Code code = Code::kIo;
  if (request.code == 404 && why != "NoSuchBucket") code = Code::kNotFound;
  const bool is_token_refused = why == "ExpiredToken" || why == "InvalidToken";  // with 400
  if (request.code == 401 || request.code == 403 || is_token_refused) code = Code::kPermission;
  if (request.code == 429 || request.code == 503) code = Code::kBusy;
  if (request.code == 507) code = Code::kNoSpace;
  return Error::make(code, "s3 %.60s: HTTP %ld%s%.80s", options_.bucket.c_str(), request.code,
                     why.empty() ? "" : ", ", why.c_str());
}

}  // namespace cachalot::storage

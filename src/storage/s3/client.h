// Requests to an S3 service, many at a time: libcurl signs them (AWS Signature Version 4) and keeps connections.
//
// What a service answers in passing (429, 500, 502, 503, 504, a connection that it resets) is tried again, after pauses
// that double, each of random length up to its limit, so that many clients do not come back at the same time. A region
// that the service names is used from then on. Keys that it refuses are asked for again (keys.h).
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rare_line.h"
#include "storage/backoff.h"
#include "storage/cancel_signal.h"
#include "storage/object.h"
#include "storage/s3/keys.h"
#include "storage/uri.h"

namespace cachalot::storage {

struct S3Options {
  std::string bucket;
  std::string endpoint;  // "http://127.0.0.1:9000"; empty: Amazon's
  std::string region = "us-east-1";
  std::string access_key, secret_key, session_token;
  std::shared_ptr<S3KeySource> keys = {};  // in place of these three; null: none
  // Whether the bucket stands in the URL's path, or in its host's name.
  enum class Style { kPath, kHost };
  Style style = Style::kPath;
  std::string ca = {};                  // a file of authorities in PEM; empty: those of the system
  std::uint32_t most_connections = 16;  // of one call
  std::uint32_t names_per_page = 1000;  // of a list
};

inline constexpr std::size_t kMostAnswerBytes = 64 << 10, kMostHeaderBytes = 64 << 10;

struct S3Request {
  enum class Verb { kGet, kHead, kPut, kDelete };

  Verb verb = Verb::kGet;
  std::string name = {};                  // of the object; empty: the bucket
  std::string query = {};                 // encoded, in the order of its names
  std::vector<std::string> headers = {};  // "Range: bytes=0-111"
  std::string_view start = {};            // of what is put
  std::span<const Bytes> body = {};       // the rest of it
  // What a successful answer brings, in pieces. False: the rest is not wanted, and the transfer ends. Other answers
  // have at most kMostAnswerBytes, and headers kMostHeaderBytes.
  std::function<bool(Bytes bytes)> take = {};
  // Drops what take() had, before the request is tried again. None: it is not tried again once take() had bytes.
  std::function<void()> restart = {};

  // Filled by the run.
  Status status = {};       // why there was no answer
  long code = 0;            // of HTTP
  std::string answer = {};  // the start of an answer without success, or without take()
  std::string region = {};  // in which the service says the bucket is

  bool is_success() const { return code >= 200 && code < 300; }
};

class S3Client {
 public:
  explicit S3Client(S3Options options);
  ~S3Client();

  // @return  at about the deadline; each request has its own status
  void run(std::span<S3Request> requests, std::uint64_t deadline_ns);
  // Raised, all calls end at once.
  const std::shared_ptr<CancelSignal>& cancel_signal() const { return cancel_; }
  // OK after a success, else why not. @errors kNotFound: no such object; kPermission, kBusy, kTimeout, kIo;
  // kUnsupported: the bucket is in a region or at an endpoint that this client cannot find
  Status outcome(const S3Request& request) const;
  // That of the options, or the one that the service has named.
  std::string region() const;

 private:
  struct Transfer;
  struct FreeMulti;
  using Multi = std::unique_ptr<void, FreeMulti>;

  // A request that waits for its turn, or for its next try.
  struct Try {
    S3Request* request;
    unsigned count;  // of the tries before
  };
  using Queue = std::multimap<std::uint64_t, Try>;  // by the time at which it may start

  Multi take_multi();
  std::string url_of(const S3Request& request, const std::string& region) const;
  std::unique_ptr<Transfer> start(const Try& one, std::uint64_t deadline_ns) const;
  void finish_some(void* multi, std::vector<std::unique_ptr<Transfer>>& running, Queue& queue,
                   std::uint64_t deadline_ns);
  std::optional<std::uint64_t> next_try(const Transfer& transfer, int result,
                                        std::uint64_t deadline_ns);
  bool follow_region(const Transfer& transfer);
  Status take_keys(std::uint64_t deadline_ns);
  bool has_other_keys(const Transfer& transfer, std::uint64_t deadline_ns);

  S3Options options_;  // does not change after the constructor
  const std::shared_ptr<CancelSignal> cancel_ = std::make_shared<CancelSignal>();
  mutable std::mutex mutex_;  // all below
  std::vector<Multi> idle_;   // their connections are kept
  std::string region_;
  S3Keys keys_;  // that requests are signed with
  Backoff backoff_;
  base::RareLine region_line_;
};

}  // namespace cachalot::storage

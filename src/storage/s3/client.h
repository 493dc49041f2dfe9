// Requests to an S3 service, many at a time: libcurl signs them (AWS Signature Version 4) and keeps connections.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/cancel_signal.h"
#include "storage/object.h"
#include "storage/uri.h"

namespace cachalot::storage {

struct S3Options {
  std::string bucket;
  std::string
      endpoint;  // "http://127.0.0.1:9000"; empty: Amazon's, with the bucket in the host's name
  std::string region = "us-east-1";
  std::string access_key, secret_key, session_token;
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

  // Filled by the run.
  Status status = {};       // why there was no answer
  long code = 0;            // of HTTP
  std::string answer = {};  // the start of an answer without success, or without take()

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
  // OK after a success, else why not. @errors kNotFound: no such object; kPermission, kBusy, kTimeout, kIo
  Status outcome(const S3Request& request) const;

 private:
  struct Transfer;
  struct FreeMulti;
  using Multi = std::unique_ptr<void, FreeMulti>;

  Multi take_multi();
  std::unique_ptr<Transfer> start(S3Request& request, std::uint64_t deadline_ns) const;
  void finish_some(void* multi, std::vector<std::unique_ptr<Transfer>>& running) const;

  const S3Options options_;
  const std::shared_ptr<CancelSignal> cancel_ = std::make_shared<CancelSignal>();
  std::string base_;  // of each URL, with its last "/"
  std::mutex mutex_;
  std::vector<Multi> idle_;  // their connections are kept
};

}  // namespace cachalot::storage

// Requests to etcd's JSON gateway, over libcurl, at the first endpoint that answers.
//
// 1. A call returns at about its deadline, also if a host's name cannot be resolved or an endpoint hangs: each endpoint
//    that is tried gets an equal part of what is left. The one that answered last is the first to be tried.
// 2. A call may reach two endpoints, or one that executes it without an answer: repeat only what may be repeated.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cachalot::transfer {

// Of etcds://. Empty files: the system's authorities, no certificate of its own.
struct EtcdTls {
  bool is_used = false;
  std::string ca_file, cert_file, key_file;
};

class EtcdClient {
 public:
  // @param endpoints  "HOST:PORT", at least one
  explicit EtcdClient(std::vector<std::string> endpoints, EtcdTls tls = {});
  ~EtcdClient();

  // POSTs a JSON text to a path such as "/v3/kv/range". @return the answer's text, at most 32 MiB
  // @errors kTimeout, kIo: no endpoint answered; kNotFound, kPermission, kNoSpace, kIo: etcd refused
  Result<std::string> post(const std::string& path, const std::string& body,
                           std::uint64_t deadline_ns);

 private:
  struct FreeEasy;
  using Easy = std::unique_ptr<void, FreeEasy>;
  struct Answer;

  Easy take_easy();
  Answer ask(const std::string& endpoint, const std::string& path, const std::string& body,
             std::uint64_t timeout_ms);

  const std::vector<std::string> endpoints_;
  const EtcdTls tls_;
  std::atomic<std::size_t> preferred_ = 0;  // relaxed: a hint
  std::mutex mutex_;
  std::vector<Easy> idle_;  // their connections are kept
};

}  // namespace cachalot::transfer

// A Redis server and the connections to it: a bounded number, each used by one call at a time.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storage/redis/connection.h"

namespace cachalot::storage {

struct RedisAddress {
  std::string path;  // of a socket; empty: host and port
  std::string host;
  std::uint16_t port = 6379;

  std::string text() const;
  // "HOST", "HOST:PORT", "[IPV6]:PORT". @errors kInvalidArgument
  static Result<RedisAddress> parse(std::string_view text);
  friend bool operator==(const RedisAddress&, const RedisAddress&) = default;
};

// The first line of a file. @errors kInvalidArgument: it is empty, or longer than 4,096 bytes; those of the file
Result<std::string> read_password(const std::string& path);

class RedisNode {
 public:
  RedisNode(RedisAddress address, RedisLogin login, std::uint32_t most_connections)
      : address_(std::move(address)),
        text_(address_.text()),
        login_(std::move(login)),
        most_connections_(most_connections) {}

  const RedisAddress& address() const { return address_; }
  const std::string& text() const { return text_; }

  // One that is idle, or a new one. Waits while all are in use. Each has to be given back.
  // @errors kTimeout, kIo
  Result<std::unique_ptr<RedisConnection>> take(std::uint64_t deadline_ns);
  // @param is_clean  its last pipeline was complete. If not, all that are idle are closed, too: what broke one has
  //                  most likely broken all.
  void give_back(std::unique_ptr<RedisConnection> connection, bool is_clean);

 private:
  Result<std::unique_ptr<RedisConnection>> connect(std::uint64_t deadline_ns);
  Result<RedisLogin> login() const;
  void leave();

  const RedisAddress address_;
  const std::string text_;
  const RedisLogin login_;
  const std::uint32_t most_connections_;
  std::mutex mutex_;  // all below
  std::condition_variable is_free_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
  std::uint32_t in_use_ = 0;
  std::string numeric_;  // the host's address; empty: not known
};

}  // namespace cachalot::storage

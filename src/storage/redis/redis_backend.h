// Objects as strings of a Redis server or cluster: PREFIX ":" and 64 hexadecimal digits.
//
// A batch is one pipeline to each server. Redis replaces a string as a whole, so a put is one SET, and one that was
// cut off leaves nothing. What Redis evicts by itself (maxmemory-policy) is a miss.
//
// @threads any
// @cost    a put copies nothing, a get copies twice; the server keeps about 170 bytes more than an object has
#pragma once

#include <memory>
#include <string>

#include "storage/backend.h"
#include "storage/redis/client.h"

namespace cachalot::storage {

class RedisBackend final : public Backend {
 public:
  // Connects to nothing yet: a server that is down is an error of the calls.
  RedisBackend(const RedisOptions& options, const std::string& prefix);

  // Whether the server lets its user do what reading takes. A replica is told in the log: it takes no puts.
  // @errors kPermission, kUnsupported: it does not; kIo, kTimeout, kBusy: it has not answered
  Status check_access(std::uint64_t deadline_ns);

  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override;
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
               std::uint64_t deadline_ns) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override;
  Status put(std::span<Put> puts, std::uint64_t deadline_ns) override;
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override;
  Status list(const Lister& each, std::uint64_t deadline_ns) override;
  // Of all servers as if each was as full as the fullest.
  Result<Space> space(std::uint64_t deadline_ns) override;
  std::shared_ptr<CancelSignal> cancel_signal() const override { return client_.cancel_signal(); }

 private:
  RedisCommand scan_command(std::string_view cursor, std::string_view count) const;
  Status ask_role(RedisNode& node, std::uint64_t deadline_ns);
  std::string name_of(const ObjectKey& key) const { return prefix_ + to_text(key); }
  RedisCommand command(std::string_view verb, const ObjectKey& key) const;
  RedisCommand range_command(const ObjectKey& key, std::uint64_t bytes) const;

  const BackendTraits traits_;
  const std::string prefix_;  // with its colon
  RedisClient client_;
};

}  // namespace cachalot::storage

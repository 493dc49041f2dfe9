// Records in etcd: a key a peer, under a lease that the peer keeps alive.
//
//   PREFIX/peers/NAME  the record, as JSON
//
// 1. A key is created only if it is absent, so that of two live peers one gets the name.
// 2. A key goes with its lease, ttl_s after the last renewal. A renewal also looks whether the key is still there: a
//    cluster that lost its data, or an operator's removal of the key, does not end the record.
// 3. A key of the same incarnation under another lease is the peer's own, from a request without an answer.
#pragma once

#include "base/rare_line.h"
#include "transfer/registry/etcd/client.h"
#include "transfer/registry/record_store.h"

namespace cachalot::transfer {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "HOST:PORT"
  std::string prefix = "/cachalot";
  std::uint64_t ttl_s = 10;
  EtcdTls tls = {};
};

class EtcdStore final : public RecordStore {
 public:
  explicit EtcdStore(EtcdOptions options);

  Timing timing() const override;
  Status hold(const PeerRecord& record, std::uint64_t deadline_ns) override;
  Status release(std::uint64_t deadline_ns) override;
  Result<PeerRecord> find(std::string_view name, std::uint64_t deadline_ns) override;
  Result<std::vector<PeerRecord>> list(std::string_view prefix, std::uint64_t deadline_ns) override;

 private:
  Status renew_lease(std::uint64_t deadline_ns);
  Status create_key(const PeerRecord& record, std::uint64_t deadline_ns);

  const EtcdOptions options_;
  const std::string keys_;   // before each name
  const std::string where_;  // for messages
  EtcdClient client_;
  std::string lease_;  // empty: none
  base::RareLine bad_record_line_{4};
};

}  // namespace cachalot::transfer

// Where the instances of the transfer engine find each other by name.
//
//   file:DIR[?shared=1]                               a directory, for the processes of one machine
//   etcd://HOST:PORT[,HOST:PORT][/PREFIX][?ttl_s=10]  an etcd cluster
//   etcds://…[?ca=FILE][&cert=FILE&key=FILE]          the same over TLS
//
// 1. At most one live peer has a name. A peer that starts again under its name is another incarnation.
// 2. A record goes with its process: at once in a directory, after ttl_s in etcd.
// 3. A published record comes back by itself after the registry was unreachable or lost it, until withdraw().
// 4. With a cluster's key a record is published with a tag (record_tag.h), and one without the right tag is not there.
// 5. A registry only says where peers are. Callers keep the records they use: transfers go on without it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/rare_line.h"
#include "os/secret_key.h"
#include "transfer/registry/peer_record.h"
#include "transfer/registry/record_store.h"

namespace cachalot::transfer {

// @threads any. A forked child destroys its copy without effect, and calls nothing else of it.
class Registry {
 public:
  explicit Registry(std::unique_ptr<RecordStore> store,
                    const std::optional<os::SecretKey>& cluster_key = {});
  ~Registry();  // withdraws; waits for etcd up to three seconds

  // Publishes the record and starts to keep it alive. While another live peer has the name it waits, because the record
  // of a killed process lapses; at the deadline it gives the error that names the holder.
  // @errors kBusy: the name is taken; kInvalidArgument: a wrong record, or one is published already;
  //         kTimeout, kIo, kPermission: the registry cannot be reached. Then nothing is published.
  Status publish(const PeerRecord& record, std::uint64_t deadline_ns);
  // Ends it. @errors kTimeout, kIo: the record was not removed, and lapses by itself. @cost waits for a renewal in flight
  Status withdraw(std::uint64_t deadline_ns);
  // OK while others find the record. Else why not: kNotFound (never published), the error of the last renewal.
  Status published() const;
  bool is_published() const { return published().ok(); }

  // @errors kNotFound: no live peer has the name; kCorrupt, kVersionMismatch: its record cannot be read; kTimeout, kIo;
  //         kPermission: it has not the cluster key's tag
  // @cost   a few system calls (file), one request (etcd); returns at about the deadline
  Result<PeerRecord> find(std::string_view name, std::uint64_t deadline_ns) const;
  // The live peers whose names begin with `prefix`, in the order of names. @errors kTimeout, kIo
  Result<std::vector<PeerRecord>> list(std::string_view prefix, std::uint64_t deadline_ns) const;

 private:
  void renew();
  void note(const Status& held, std::uint64_t started_ns);

  std::unique_ptr<RecordStore> store_;
  const std::optional<os::SecretKey> cluster_key_;
  mutable base::RareLine untagged_line_;
  const std::int64_t pid_;

  std::mutex calls_;  // publish() and withdraw()
  std::thread renewer_;

  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> wake_;
  PeerRecord record_;  // changes only while no thread renews it
  bool ends_ = false;
  std::uint64_t lapses_ns_ = 0;
  Status last_;  // of hold()
};

// @errors kInvalidArgument: not of the forms above; kUnsupported: this build has no such registry; kPermission, kIo: the
//         directory. etcd is not asked yet.
Result<std::unique_ptr<Registry>> open_registry(
    std::string_view uri, const std::optional<os::SecretKey>& cluster_key = {});

}  // namespace cachalot::transfer

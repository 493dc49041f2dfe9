// Where a rank finds others by name: a registry, asked by a thread of its own, so that no call of a rank waits for it.
//
// @threads any; callbacks come in the thread of the book
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "transfer/registry/registry.h"

namespace cachalot::transfer {

class AddressBook {
 public:
  // Publishes the own record. A peer that was killed keeps its name for a while: waits for that, up to 15 seconds.
  // @errors as open_registry() and Registry::publish()
  static Result<std::unique_ptr<AddressBook>> open(std::string_view uri, const PeerRecord& own,
                                                   const std::optional<os::SecretKey>& cluster_key);
  ~AddressBook();  // as close()
  // Withdraws the record. Callbacks that have not come never come. @threads one
  void close();

  void find(std::string name, std::uint64_t deadline_ns,
            std::function<void(Result<PeerRecord>)> found);

 private:
  struct Question {
    std::string name;
    std::uint64_t deadline_ns;
    std::function<void(Result<PeerRecord>)> found;
  };
  explicit AddressBook(std::unique_ptr<Registry> registry) : registry_(std::move(registry)) {}
  void answer();

  const std::unique_ptr<Registry> registry_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Question> questions_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace cachalot::transfer

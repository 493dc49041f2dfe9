// What SIGHUP changes of a keeper with a flag file: the log, and limits. Other flags wait for the next start.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pool/keeper/service/keeper.h"
#include "serve_flags.h"

namespace cachalot::apps {

// Limits of a keeper that another thread changes.
class NewLimits {
 public:
  // @threads any
  void set(std::uint32_t max_grants, std::uint64_t suspect_after_ms);
  // Gives the keeper what was set since the last call. @threads the keeper's
  void take(pool::Keeper& keeper);

 private:
  std::mutex mutex_;
  bool are_new_ = false;
  std::uint32_t max_grants_ = 0;
  std::uint64_t suspect_after_ms_ = 0;
};

// Reads the flag file again: some flags count from now on, a line of the log names the others. A file with an error changes
// nothing.
// @threads one
class ServeReread {
 public:
  ServeReread(const ServeFlags& started, NewLimits& limits) : started_(started), limits_(limits) {}

  void operator()();

 private:
  // Whether the pool would have to be another one. @errors as make_geometry()
  Result<bool> differs_in_geometry(const ServeFlags& now) const;
  void apply(const ServeFlags& now, const Command& command, bool has_other_geometry);

  const ServeFlags& started_;
  NewLimits& limits_;
  std::unique_ptr<LooseCommand> before_;  // of the last reading; null: the start
  std::unique_ptr<ServeFlags> last_;      // what it has written to
};

}  // namespace cachalot::apps

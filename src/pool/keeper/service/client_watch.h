// Notices clients that attach, leave, exit or fall silent, from the lines that they write themselves and from
// evidence of their processes.
//
// Silence makes a suspect; only evidence frees what it holds.
//
// @threads  one
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "pool/format/evidence.h"
#include "pool/keeper/sessions.h"

namespace cachalot::pool {

class ClientWatch {
 public:
  // @param evidence  may be null
  ClientWatch(const Access& access, const KeeperOptions& options, const Reign& reign,
              base::Clock& clock, Evidence* evidence, Sessions& sessions)
      : access_(access),
        options_(options),
        reign_(reign),
        clock_(clock),
        evidence_(evidence),
        sessions_(sessions) {}

  // Looks at the client table, and at each watch_interval_ns also at heartbeats and processes.
  void look();

 private:
  void read_table();
  void watch_processes(std::uint64_t now_ns);
  void notice_farewell(std::uint32_t client, const ClientLine& line);
  void let_in(std::uint32_t client, const ClientLine& line);
  bool has_exited(std::uint32_t client) const;

  const Access& access_;
  const KeeperOptions& options_;
  const Reign& reign_;
  base::Clock& clock_;
  Evidence* evidence_;
  Sessions& sessions_;
  std::uint64_t next_watch_ns_ = 0;
};

}  // namespace cachalot::pool

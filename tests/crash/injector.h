// Chooses the next process to die, where and how, lets it happen, and checks the state afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors.h"
#include "arena.h"
#include "base/rng.h"
#include "os/child.h"
#include "pool/pool.h"

namespace cachalot::crash {

enum class Victim : std::uint32_t { kClient, kKeeper };

struct Injection {
  Victim victim;
  Action action;
  base::FailPoint point;  // kNone: a random instant
};

struct Tally {
  std::uint64_t injected = 0, missed = 0, in_copies = 0;
  std::array<std::array<std::uint64_t, 3>, 2> by_kind{};  // [victim][action]
  std::array<std::uint64_t, static_cast<std::size_t>(base::FailPoint::kCount)> by_point{};
  std::uint64_t longest_recovery_ns = 0;
  std::string longest_recovery;  // after what, and where the time went
};

class Injector {
 public:
  Injector(const Setting& setting, Arena& arena, std::uint64_t seed);
  ~Injector();

  // Makes the pool and starts all processes. False: a fault was noted.
  bool begin();
  // One injection with all its checks. False: a fault was noted.
  bool inject();
  // All processes end orderly; nothing may be held any more.
  bool end();

  const Tally& tally() const { return tally_; }

 private:
  Injection choose();
  bool inject_at_client(const Injection& injection);
  bool inject_at_keeper(const Injection& injection);
  bool inject_at_takeover(const Injection& injection);
  bool wait_reached(Desk& desk, std::uint32_t actor, std::uint64_t patience_ms);
  bool wait_stopped(const Desk& desk, std::uint32_t actor);
  void order(std::uint32_t actor, const Injection& injection);
  void count(const Injection& injection);

  bool start_client(std::uint32_t client);
  bool start_keeper();
  bool wait_for_rule(std::uint32_t desk);
  bool end_old_keeper(std::uint32_t desk);
  bool check_recovery(std::uint64_t since_ns);
  void note_recovery(std::uint64_t since_ns, std::uint64_t went_on_ns, std::uint32_t last);
  bool is_accounted(std::string& why, bool is_quiet) const;
  bool has_faults() const { return arena_.faults.load() != 0; }
  bool fault(const char* what);

  const Setting& setting_;
  Arena& arena_;
  base::Rng rng_;
  std::optional<pool::Pool> pool_;
  std::array<std::optional<os::Child>, kActors> children_;
  std::uint32_t keeper_ = kClients;  // desk of the ruling one
  Injection now_{};
  std::uint64_t ruled_ns_ = 0;  // when the last keeper that was started began to
  Tally tally_;
};

}  // namespace cachalot::crash

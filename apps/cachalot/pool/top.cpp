#include "top.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "keeper_hangs.h"
#include "pool_flags.h"
#include "pool_list.h"
#include "pool_report.h"
#include "top_text.h"
#include "values.h"

namespace cachalot::apps {
namespace {

using Json = nlohmann::json;

struct TopOptions {
  Paths paths;
  std::string interval = "1";
  bool once = false;
};

std::atomic<bool> has_ended{false};

void note_end_of_top(int) {
  has_ended.store(true, std::memory_order_relaxed);
}

// In pieces, so that a signal ends it.
void wait(double seconds) {
  constexpr double kPieceS = 0.05;
  for (double left = seconds; left > 0 && !has_ended.load(std::memory_order_relaxed);
       left -= kPieceS)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, kPieceS)));
}

// Of pools, by their paths.
using Pulses = std::map<std::string, pool::KeeperPulse>;

// Pools may come and go: each look opens them anew. The first look at a pool waits for its keeper.
Snapshots look(const TopOptions& options, Pulses& pulses) {
  Snapshots found;
  const Paths paths = options.paths.empty() ? find_pools(kPoolFolder) : options.paths;
  for (const std::string& path : paths) {
    const Result<pool::Pool> pool = open_pool_to_read({path});
    if (!pool) {
      found.push_back({path, pool.error().message});
      continue;
    }
    const auto [pulse, is_new] = pulses.try_emplace(path);
    const bool hangs =
        is_new ? wait_for_keeper(*pool, pulse->second) : keeper_hangs(*pool, pulse->second);
    found.push_back({path, describe_pool(*pool, hangs)});
  }
  return found;
}

// As much of it as the terminal has room for: a line that is too long would move all others.
std::string screen_of(const std::string& text) {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
  const std::size_t rows = is_known ? size.ws_row - 1u : 24, columns = is_known ? size.ws_col : 80;
  std::string screen = "\033[H";
  std::size_t at = 0;
  for (std::size_t row = 0; row < rows && at < text.size(); ++row) {
    const std::size_t end = text.find('\n', at);
    // What was on the line is erased.
    screen += text.substr(at, std::min(end - at, columns)) + "\033[K\n";
    at = end + 1;
  }
  return screen + "\033[J";
}

Status top(const TopOptions& options) {
  constexpr double kNs = 1e9;
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, note_end_of_top);
  const bool is_terminal = isatty(STDOUT_FILENO) != 0 && !options.once;
  const double interval_s = std::stod(options.interval);
  Pulses pulses;
  Snapshots before = look(options, pulses);
  for (const auto& [path, description] : before) {
    if (options.paths.empty() || description.is_object()) continue;
    return Error::make(Code::kNotFound, "%s", description.get<std::string>().c_str());
  }
  std::uint64_t before_ns = base::SteadyClock::read();
  do {
    wait(interval_s);
    if (has_ended.load(std::memory_order_relaxed)) break;
    Snapshots now = look(options, pulses);
    const std::uint64_t now_ns = base::SteadyClock::read();
    std::string text = top_text(before, now, static_cast<double>(now_ns - before_ns) / kNs);
    const std::string note = options.paths.empty() ? unreadable_note(kPoolFolder) : "";
    if (!note.empty()) text += note + "\n";
    std::fputs(is_terminal ? screen_of(text).c_str() : text.c_str(), stdout);
    CACHALOT_TRY(flush(stdout));
    before = std::move(now);
    before_ns = now_ns;
  } while (!options.once);
  return {};
}

}  // namespace

void add_top(Command& app, Chosen& chosen) {
  Command* const command = app.add_subcommand(
      "top", "shows pools live: clients, hit rates by source, traffic, evictions");
  const auto options = std::make_shared<TopOptions>();
  command
      ->add_option("path,--pool", options->paths,
                   "pools, by their first devices (default: all in /dev/shm)")
      ->expected(0, -1)
      ->type_name("PATH");
  command->add_option("--interval", options->interval, "seconds between two looks")
      ->type_name("SECONDS")
      ->transform(decimal(0.1, 3600))
      ->capture_default_str();
  command->add_flag("--once", options->once, "print one interval, and end");
  command->footer("Example: cachalot top\n         cachalot top /dev/shm/kv --once --interval 5");
  command->callback([options, &chosen] {
    chosen.run = [options] {
      const Status status = top(*options);
      return status ? kExitDone : fail(status.error());
    };
  });
}

}  // namespace cachalot::apps

#include "node/events/publisher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace cachalot::events {
namespace {

constexpr std::uint32_t kQueuedChanges = 1u << 16;
constexpr std::uint32_t kIdleMs = 10;

}  // namespace

Publisher::Publisher(pool::Keeper& keeper, const pool::Access& access, Endpoints endpoints,
                     std::optional<Sockets> sockets, FeedOptions options)
    : keeper_(keeper),
      endpoints_(std::move(endpoints)),
      changes_(access.domain(), kQueuedChanges),
      feed_(access, changes_, std::move(options)),
      sockets_(std::move(sockets)),
      thread_([this] { run(); }) {
  keeper_.observe(changes_);
}

Publisher::~Publisher() {
  keeper_.end_observing(changes_);
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void Publisher::run() {
  const auto publish = [this](const SharedMessage& message) { sockets_->publish(message); };
  std::uint32_t idle_ms = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!sockets_) {
      open_sockets();
      continue;
    }
    bool is_sent = feed_.advance(publish) != 0;
    if (feed_.is_current()) is_sent |= replays_.advance(*sockets_);
    sockets_->tend();
    // A subscriber that has read again is not announced: look for it soon, and then ever less often.
    idle_ms = is_sent ? 0 : replays_.is_idle() ? kIdleMs : std::min(idle_ms + 1, kIdleMs);
    static_cast<void>(sockets_->wait(idle_ms));
  }
  if (sockets_) feed_.advance(publish);
}

void Publisher::open_sockets() {
  constexpr std::chrono::milliseconds kPause(10);
  constexpr int kPauses = 100;
  Result<Sockets> opened = Sockets::open(endpoints_);
  if (opened) {
    sockets_ = *std::move(opened);
    return;
  }
  if (waiting_line_.is_due())
    base::log(base::LogLevel::kWarn, "events", "not published yet: %s", opened.error().message);
  for (int i = 0; i < kPauses && !stop_.load(std::memory_order_relaxed); ++i)
    std::this_thread::sleep_for(kPause);
}

}  // namespace cachalot::events

#include "node/events/publisher.h"

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
  const auto publish = [this](const Message& message) {
    sockets_->publish(message);
    return true;
  };
  while (!stop_.load(std::memory_order_relaxed)) {
    if (!sockets_) {
      open_sockets();
      continue;
    }
    const std::size_t sent = feed_.advance(publish);
    if (sockets_->wait(sent == 0 ? kIdleMs : 0)) serve_request();
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
  base::log(base::LogLevel::kWarn, "events", "not published yet: %s", opened.error().message);
  for (int i = 0; i < kPauses && !stop_.load(std::memory_order_relaxed); ++i)
    std::this_thread::sleep_for(kPause);
}

void Publisher::serve_request() {
  if (!feed_.is_current()) return;  // the directory is read first, by the next advance()
  const std::optional<Sockets::Request> request = sockets_->take_request();
  if (!request) {
    base::log(base::LogLevel::kWarn, "events", "a replay request is not a number of 8 bytes");
    return;
  }
  const bool is_sent = feed_.replay(request->first, [&](const Message& message) {
    return sockets_->answer(*request, message);
  }) && sockets_->end_answer(*request);
  if (!is_sent) {
    base::log(base::LogLevel::kWarn, "events", "a subscriber did not take its replay to the end");
  }
}

}  // namespace cachalot::events

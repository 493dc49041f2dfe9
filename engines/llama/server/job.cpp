#include "job.h"

#include <utility>

namespace cachalot::llama {

void Job::put(Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (!pending_) pending_.emplace();
    pending_->text += event.text;
    pending_->finish = event.finish;
    pending_->error = event.error;
  }
  changed_.notify_one();
}

std::optional<Event> Job::take(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return pending_.has_value(); });
  return std::exchange(pending_, std::nullopt);
}

}  // namespace cachalot::llama

#include "replay/allocation/kv_slots.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace cachalot::replay {
namespace {

class Slots {
 public:
  Slots(const KvRequests& requests, const KvSchedule& schedule, std::uint64_t max_tokens,
        std::span<KvTrack> tracks)
      : requests_(requests), schedule_(schedule), max_tokens_(max_tokens), tracks_(tracks) {}

  Result<KvRun> run(const std::function<void(std::uint64_t)>& progress) {
    for (;;) {
      CACHALOT_TRY(admit());
      if (running_ == 0) {
        if (next_ == requests_.size()) return run_;
        now_ms_ = std::max(now_ms_, requests_.arrival_ms(next_));
        continue;
      }
      CACHALOT_TRY(decode());
      measure();
      finish();
      now_ms_ += schedule_.step_ms;
      if (progress && run_.steps % kStepsBetween == 0) progress(next_);
    }
  }

 private:
  static constexpr std::uint64_t kStepsBetween = 1024;
  struct Slot {
    std::uint64_t tokens = 0, total_tokens = 0;
    bool is_running = false;
  };

  template <class F>
  Status each(F&& f) {
    for (KvTrack& track : tracks_) {
      CACHALOT_TRY(f(*track.measured));
      if (track.expected != nullptr) CACHALOT_TRY(f(*track.expected));
    }
    return {};
  }

  std::size_t take_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      return slots_.size() - 1;
    }
    const std::size_t slot = free_.top();
    free_.pop();
    return slot;
  }

  bool may_begin() const {
    if (next_ == requests_.size()) return false;
    return schedule_.slots != 0 ? running_ < schedule_.slots
                                : requests_.arrival_ms(next_) <= now_ms_;
  }

  Status admit() {
    for (; may_begin(); ++next_) {
      const std::uint64_t total = requests_.total_tokens(next_);
      if (total > max_tokens_ || total == 0) {
        run_.left_out += 1;
        continue;
      }
      const std::size_t slot = take_slot();
      const KvMemory::Prompt prompt{.tokens = requests_.input_tokens(next_),
                                    .total_tokens = total,
                                    .ids = requests_.ids(next_)};
      CACHALOT_TRY(each([&](KvMemory& memory) { return memory.begin(slot, prompt); }));
      CACHALOT_TRY(each([&](KvMemory& memory) { return memory.computed(slot, prompt); }));
      slots_[slot] = {.tokens = prompt.tokens, .total_tokens = total, .is_running = true};
      tokens_ += prompt.tokens;
      running_ += 1;
      run_.requests += 1;
    }
    return {};
  }

  Status decode() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (!slot.is_running || slot.tokens == slot.total_tokens) continue;
      slot.tokens += 1;
      tokens_ += 1;
      CACHALOT_TRY(each([&](KvMemory& memory) { return memory.grow(i, slot.tokens); }));
    }
    const auto step_ns = static_cast<std::uint64_t>(std::llround(schedule_.step_ms * 1e6));
    for (KvTrack& track : tracks_) track.measured->step(step_ns);
    return {};
  }

  void measure() {
    run_.steps += 1;
    run_.peak_running = std::max(run_.peak_running, running_);
    run_.peak_tokens = std::max(run_.peak_tokens, tokens_);
    run_.token_steps += static_cast<double>(tokens_);
    run_.running_steps += static_cast<double>(running_);
    for (KvTrack& track : tracks_) {
      const std::uint64_t bytes = track.measured->bytes();
      track.peak_bytes = std::max(track.peak_bytes, bytes);
      track.byte_steps += static_cast<double>(bytes);
      if (track.expected == nullptr) continue;
      const std::uint64_t expected = track.expected->bytes();
      track.expected_peak_bytes = std::max(track.expected_peak_bytes, expected);
      track.expected_byte_steps += static_cast<double>(expected);
      if (bytes != expected) track.wrong_steps += 1;
    }
  }

  void finish() {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (!slot.is_running || slot.tokens != slot.total_tokens) continue;
      static_cast<void>(each([&](KvMemory& memory) {
        memory.end(i);
        return Status();
      }));
      tokens_ -= slot.tokens;
      running_ -= 1;
      slot.is_running = false;
      free_.push(i);
    }
  }

  const KvRequests& requests_;
  const KvSchedule schedule_;
  const std::uint64_t max_tokens_;
  const std::span<KvTrack> tracks_;
  std::vector<Slot> slots_;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free_;
  std::size_t next_ = 0;
  double now_ms_ = 0;
  std::uint64_t running_ = 0, tokens_ = 0;
  KvRun run_;
};

}  // namespace

Result<KvRun> run_kv(const KvRequests& requests, const KvSchedule& schedule,
                     std::uint64_t max_tokens, std::span<KvTrack> tracks,
                     const std::function<void(std::uint64_t)>& progress) {
  return Slots(requests, schedule, max_tokens, tracks).run(progress);
}

}  // namespace cachalot::replay

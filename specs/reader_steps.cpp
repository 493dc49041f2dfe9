// A read without a request: look up, copy, validate; or, pinned, without validating.
//
// A flushed read of some lines drops them from the cache first and loads them then, so each line's
// value is from some moment between the two: a prefetch may bring it in early, the load itself
// comes last. Here each line of a read is sampled in a step of its own, in any order. What a
// prefetch brings in at other times is dropped before it is used, and therefore left out.

#include "buffer.h"

namespace cachalot::specs {

namespace {

constexpr std::uint8_t kEntrySampled = 1;
constexpr std::uint8_t kViewSampled = 2;
constexpr std::uint8_t kAllSampled = 3;

class ReaderSteps {
 public:
  ReaderSteps(const Model& model, const State& state, Sink& sink)
      : model_(model),
        state_(state),
        self_(state.reader),
        buffer_(state.buffers[kReader]),
        entry_line_(state.pool[kEntryLine + slot_of(model, state.reader.hash)]),
        view_line_(state.pool[kSuccessorLine]),
        entry_(Entry::from(state.reader.entry)),
        sink_(sink) {}

  void all() const {
    switch (self_.at) {
      case ReaderAt::kIdle:
        for (const std::uint8_t hash : model_.scenario->wanted) begin(hash);
        return;
      case ReaderAt::kCompletePin:
        if (!is_drained(buffer_)) return;
        return emit("completes its pin", {},
                    [](State& next) { next.reader.at = ReaderAt::kLookup; });
      case ReaderAt::kLookup:
        return look_up();
      case ReaderAt::kCopy:
        return copy();
      case ReaderAt::kValidate:
        return validate(self_.sampled, false);
      case ReaderAt::kUnpin:
        return emit("unpins", {}, [&](State& next) {
          Pin pin;
          pin.newest = self_.read;
          order(next.buffers[kReader]);
          store(next.buffers[kReader], kPinLine, pin.pack());
          end(next);
          if (self_.read == model_.scenario->pinned_reads) return;
          next.reader.read = self_.read;
          next.reader.at = ReaderAt::kIdle;
        });
      case ReaderAt::kDone:
        return;
    }
  }

 private:
  template <typename Change>
  void emit(const char* format, const int (&values)[4], Change change) const {
    State next = state_;
    change(next);
    Label label{"R", format};
    for (int i = 0; i < 4; ++i) label.values[i] = values[i];
    sink_.step(next, label);
  }

  static void end(State& next) {
    next.reader = {};
    next.reader.at = ReaderAt::kDone;
  }

  void begin(std::uint8_t hash) const {
    if (!pins(model_)) {
      return emit("looks up h%d", {hash, 0, 0, 0}, [&](State& next) {
        next.reader.hash = hash;
        next.reader.at = ReaderAt::kLookup;
      });
    }
    emit("pins and looks up h%d", {hash, 0, 0, 0}, [&](State& next) {
      next.reader.hash = hash;
      Pin pin;
      pin.oldest = pin.newest = ++next.reader.read;
      store(next.buffers[kReader], kPinLine, pin.pack());
      next.reader.at = model_.broken(Variant::kPinnedReadWithoutComplete) ? ReaderAt::kLookup
                                                                          : ReaderAt::kCompletePin;
    });
  }

  void look_up() const {
    if ((self_.sampled & kEntrySampled) == 0) {
      const Entry entry = Entry::from(entry_line_);
      emit(
          entry.hash != 0 ? "sees entry h%d -> block %d, epoch %d, generation %d" : "sees no entry",
          {entry.hash, entry.block, entry.epoch, entry.generation}, [&](State& next) {
            next.reader.entry = entry_line_;
            next.reader.sampled |= kEntrySampled;
            finish_lookup(next);
          });
    }
    if ((self_.sampled & kViewSampled) == 0) {
      emit("sees keeper epoch %d, min %d", {ruling_epoch(view_line_), min_epoch(view_line_), 0, 0},
           [&](State& next) {
             next.reader.view = view_line_;
             next.reader.sampled |= kViewSampled;
             finish_lookup(next);
           });
    }
  }

  void finish_lookup(State& next) const {
    Reader& self = next.reader;
    if (self.sampled != kAllSampled) return;
    const Entry entry = Entry::from(self.entry);
    const bool is_hit = entry.hash == self.hash && entry.epoch >= min_epoch(self.view) &&
                        entry.epoch <= ruling_epoch(self.view);
    self.sampled = 0;
    self.at = ReaderAt::kCopy;
    if (!is_hit) miss(next);
  }

  void miss(State& next) const {
    if (!pins(model_)) return end(next);
    begin_to_unpin(next);
  }

  void begin_to_unpin(State& next) const {
    next.reader = {};
    next.reader.read = self_.read;
    next.reader.at = ReaderAt::kUnpin;
  }

  void copy() const {
    for (int half = 0; half < kHalves; ++half) {
      if ((self_.sampled & 1 << half) != 0) continue;
      const std::uint16_t bytes = state_.pool[kDataLine + entry_.block * kHalves + half];
      emit("loads half %d of block %d: h%d", {half, entry_.block, bytes, 0}, [&](State& next) {
        next.reader.halves[half] = static_cast<std::uint8_t>(bytes);
        next.reader.sampled |= static_cast<std::uint8_t>(1 << half);
        finish_copy(next);
      });
    }
    // R3's fence before the flush: without it validation's loads may be performed in here.
    if (model_.broken(Variant::kValidateWithoutLeadingFence)) validate(self_.early, true);
  }

  void finish_copy(State& next) const {
    Reader& self = next.reader;
    if (self.sampled != kAllSampled) return;
    if (pins(model_)) return hand_out(next);
    self.sampled = self.early;
    self.early = 0;
    self.at = ReaderAt::kValidate;
    if (self.sampled == kAllSampled) hand_out(next);
  }

  // R6. An early sample that differs only ends the read, so it is not followed.
  void validate(std::uint8_t sampled, bool is_early) const {
    if ((sampled & kEntrySampled) == 0) sample_again(kEntrySampled, is_same_entry(), is_early);
    if ((sampled & kViewSampled) == 0) sample_again(kViewSampled, is_same_view(), is_early);
  }

  bool is_same_entry() const {
    if (model_.broken(Variant::kReadNotValidated)) return true;
    if (!model_.broken(Variant::kValidateGenerationOnly)) return entry_line_ == self_.entry;
    return entry_line_ != 0 && Entry::from(entry_line_).generation == entry_.generation;
  }
  bool is_same_view() const {
    if (ruling_epoch(view_line_) != ruling_epoch(self_.view)) return false;
    return model_.broken(Variant::kValidateIgnoresMinEpoch) ||
           entry_.epoch >= min_epoch(view_line_);
  }

  void sample_again(std::uint8_t bit, bool is_same, bool is_early) const {
    if (is_early && !is_same) return;
    const char* text = nullptr;
    if (bit == kEntrySampled) {
      text =
          is_same ? "validates: the entry is the same" : "validates: the entry has changed, a miss";
    } else {
      text =
          is_same ? "validates: the same keeper rules" : "validates: another keeper rules, a miss";
    }
    emit(text, {}, [&](State& next) {
      Reader& self = next.reader;
      if (!is_same) return end(next);
      std::uint8_t& sampled = is_early ? self.early : self.sampled;
      sampled |= bit;
      if (!is_early && sampled == kAllSampled) hand_out(next);
    });
  }

  void hand_out(State& next) const {
    const Reader& self = next.reader;
    if (self.halves[0] != self.hash || self.halves[1] != self.hash) next.wrong_bytes = self.hash;
    if (!pins(model_)) return end(next);
    begin_to_unpin(next);
  }

  const Model& model_;
  const State& state_;
  const Reader& self_;
  const Buffer& buffer_;
  const std::uint16_t entry_line_;
  const std::uint16_t view_line_;
  const Entry entry_;
  Sink& sink_;
};

}  // namespace

void reader_steps(const Model& model, const State& state, Sink& sink) {
  ReaderSteps(model, state, sink).all();
}

}  // namespace cachalot::specs

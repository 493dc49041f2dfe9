// A client whose keeper has changed or suspects it: it attaches again, and sends again what is in
// doubt.

#include "client_actor.h"

namespace cachalot::specs {

namespace {

class AttachSteps : public ClientActor {
 public:
  using ClientActor::ClientActor;

  void all() const {
    if (self_.at == ClientAt::kLeave) return attach_again();
    if (self_.at == ClientAt::kAwaitView) return await_view();
    await_doubt();
  }

 private:
  void attach_again() const {
    constexpr int kLastIncarnation = 3;
    if (self_.incarnation == kLastIncarnation)
      return leave_world("has attached often enough and exits");
    const std::uint16_t view = state_.pool[kSuccessorLine];
    if (view == kTakingOver || (self_.incarnation == 0 && view == kFirstRules)) return;
    const bool is_drained = self_.straggler_hash == 0;
    const bool waits = is_drained && !model_.broken(Variant::kAttachedAgainWithoutComplete);
    if (waits ? !specs::is_drained(buffer_) : !has_room(buffer_, 1)) return;
    emit("attaches to keeper %d as incarnation %d, drained: %d",
         {ruling_epoch(view), self_.incarnation + 1, is_drained, 0},
         [&](Client& self, Buffer& buffer) {
           Greeting greeting;
           greeting.incarnation = static_cast<std::uint16_t>(self_.incarnation + 1);
           greeting.drained = is_drained ? self_.incarnation : std::uint16_t{0};
           greeting.epoch = static_cast<std::uint16_t>(ruling_epoch(view));
           if (is_drained == waits) order(buffer);
           store(buffer, static_cast<std::uint8_t>(kClientLine + index_), greeting.pack());
           self.epoch = static_cast<std::uint8_t>(greeting.epoch);
           self.sequence = 0;
           ++self.incarnation;
           self.at = ClientAt::kAwaitView;
         });
  }

  void await_view() const {
    if (ruling_epoch(state_.pool[kSuccessorLine]) != self_.epoch) {
      emit("sees another keeper while it attaches", {},
           [](Client& self, Buffer&) { self.at = ClientAt::kLeave; });
    }
    const std::uint16_t view =
        state_.pool[kViewLine + keeper_index(self_.epoch) * kClients + index_];
    if (view != self_.incarnation) return;
    emit("is let in as incarnation %d", {self_.incarnation, 0, 0, 0},
         [](Client& self, Buffer&) { self.at = ClientAt::kIdle; });
  }

  void await_doubt() const {
    if (must_leave()) stop_storing();
    const Response response = answer();
    if (!is_answered(response)) return;
    emit(verdict_text(response.verdict), {self_.doubt_hash, self_.doubt_block, 0, 0},
         [&](Client& self, Buffer&) {
           self.at = self_.holds != 0 ? ClientAt::kPost : ClientAt::kIdle;
           if (response.verdict == Response::kDuplicate && self_.holds == 0) {
             self.holds = 1;
             self.block = self_.doubt_block;
             self.generation = static_cast<std::uint8_t>(self_.doubt_generation + 1);
           }
           self.doubt_hash = self.doubt_block = self.doubt_generation = 0;
         });
  }
};

}  // namespace

void attach_steps(const Model& model, const State& state, int client, Sink& sink) {
  AttachSteps(model, state, client, sink).all();
}

}  // namespace cachalot::specs

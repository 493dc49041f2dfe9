// The order in which layers are loaded into device memory and offloaded from it while a model computes one layer after the
// other: decisions only, no copies and no clock.
//
//   computation    | layer 3      | layer 4      | layer 5      |        all layers offloaded (x = 0), decode
//   copy thread    | off 2, load 4| off 3, load 5| off 4, load 6|
//   device memory  | 3 and 2 or 4 | 4 and 3 or 5 | 5 and 4 or 6 |
//
//   layer   away ── next(): kLoad ──▶ loading ── done() ──▶ ready ── acquire() ──▶ in use ── release() ──▶ queued
//            ▲                                                ▲                                   │         │
//            │                                                └──── a resident layer stays ───────┘         │
//            └────────────── done() ◀── offloading ◀── next(): kOffload ────────────────────────────────────┘
//
// 1. At most most_on_device(layers, resident) layers have device memory. After resident() was lowered, the old number
//    holds until as many layers are offloaded.
// 2. Layers are loaded in the order in which the computation needs them. After the last layer that is the first one, for
//    the next step.
// 3. A layer is loaded, offloaded or in use, never two of them. One work is in flight at a time.
// 4. While acquire() of the next layer is not possible, next() has a work or one is in flight: the computation never
//    waits for itself.
//
// @threads one at a time
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace cachalot::tier::layerwise {

class LayerSchedule {
 public:
  enum class Kind : std::uint8_t { kNone, kLoad, kOffload };
  struct Work {
    Kind kind = Kind::kNone;
    std::uint64_t layer = 0;
  };

  LayerSchedule(std::uint64_t layers, std::uint64_t resident);

  // Between steps, and without a work in flight. Other layers stay from now on; all that are not resident are offloaded.
  void set_resident(std::uint64_t resident);

  // A step begins: layers for which `lacks` is true are loaded before their acquire().
  void begin(const std::function<bool(std::uint64_t layer)>& lacks);
  // The next layer, which is ready. / The layer in use: the computation does not need it any more.
  void acquire(std::uint64_t layer);
  void release(std::uint64_t layer);

  // Ends the step without its remaining layers; without a work in flight.
  void cancel();

  // What is to be copied next; the caller ends it by done() before it asks again.
  // @param may_load  false: offloads only, since loads failed
  Work next(bool may_load = true);
  // @param is_ready  of a load: whether the layer has now all that the step needs; otherwise it is loaded again
  void done(const Work& work, bool is_ready = true);

  std::uint64_t layers() const { return layers_.size(); }
  std::uint64_t resident() const { return resident_; }
  bool is_resident(std::uint64_t layer) const { return layers_[layer].is_resident; }
  bool is_ready(std::uint64_t layer) const { return layers_[layer].is_ready; }
  bool is_in_step() const { return is_in_step_; }
  // The layer that is in use, or will be next.
  std::uint64_t position() const { return position_; }
  // Layers are queued, whose memory next() will free.
  bool has_offloads() const { return !leaving_.empty(); }
  bool is_in_use() const { return is_in_use_; }
  std::uint64_t on_device() const { return on_device_; }
  // Rule 1.
  std::uint64_t most_on_device() const { return most_; }

  // Recomputes what is counted.
  bool is_valid() const;

 private:
  struct Layer {
    bool is_resident = false;
    bool has_memory = false;
    bool is_ready = true;  // has all that the step needs; before the first step that is nothing
    bool is_leaving = false;
  };

  std::uint64_t staged() const;
  void clear_staging();
  void leave(std::uint64_t layer);

  std::vector<Layer> layers_;
  std::uint64_t resident_ = 0;
  std::uint64_t most_ = 0;
  std::uint64_t on_device_ = 0;
  std::deque<std::uint64_t> leaving_;
  std::uint64_t position_ = 0;
  bool is_in_step_ = false;
  bool is_in_use_ = false;
  Work working_;
};

}  // namespace cachalot::tier::layerwise

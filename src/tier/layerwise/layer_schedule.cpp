#include "tier/layerwise/layer_schedule.h"

#include <algorithm>

#include "base/check.h"
#include "tier/layerwise/resident_layers.h"

namespace cachalot::tier::layerwise {

LayerSchedule::LayerSchedule(std::uint64_t layers, std::uint64_t resident) : layers_(layers) {
  set_resident(resident);
}

void LayerSchedule::set_resident(std::uint64_t resident) {
  CACHALOT_CHECK(!is_in_step_ && working_.kind == Kind::kNone);
  resident_ = std::min(resident, layers());
  for (std::uint64_t i = 0; i < layers(); ++i) {
    Layer& layer = layers_[i];
    layer.is_resident = layerwise::is_resident(i, layers(), resident_);
  }
  clear_staging();
  most_ = std::max(layerwise::most_on_device(layers(), resident_), on_device_);
}

std::uint64_t LayerSchedule::staged() const {
  return static_cast<std::uint64_t>(
      std::count_if(layers_.begin(), layers_.end(), [](const Layer& layer) {
        return layer.has_memory && (!layer.is_resident || layer.is_leaving);
      }));
}

// Both places are free for the layers that are next, after the offloads.
void LayerSchedule::clear_staging() {
  for (std::uint64_t i = 0; i < layers(); ++i) {
    if (layers_[i].has_memory && !layers_[i].is_resident) leave(i);
  }
}

void LayerSchedule::leave(std::uint64_t layer) {
  layers_[layer].is_ready = false;
  if (layers_[layer].is_leaving) return;
  layers_[layer].is_leaving = true;
  leaving_.push_back(layer);
}

void LayerSchedule::begin(const std::function<bool(std::uint64_t)>& lacks) {
  CACHALOT_CHECK(!is_in_step_);
  is_in_step_ = true;
  for (std::uint64_t i = 0; i < layers(); ++i) {
    Layer& layer = layers_[i];
    const bool is_loading = working_.kind == Kind::kLoad && working_.layer == i;
    layer.is_ready = !layer.is_leaving && !is_loading && !lacks(i);
  }
}

void LayerSchedule::cancel() {
  CACHALOT_CHECK(is_in_step_ && working_.kind == Kind::kNone);
  is_in_step_ = is_in_use_ = false;
  position_ = 0;
  clear_staging();
}

void LayerSchedule::acquire(std::uint64_t layer) {
  CACHALOT_CHECK(is_in_step_ && !is_in_use_ && layer == position_ && layers_[layer].is_ready);
  is_in_use_ = true;
}

void LayerSchedule::release(std::uint64_t layer) {
  CACHALOT_CHECK(is_in_use_ && layer == position_);
  is_in_use_ = false;
  if (!layers_[layer].is_resident) leave(layer);
  position_ = layer + 1 == layers() ? 0 : layer + 1;
  if (position_ == 0) is_in_step_ = false;
}

LayerSchedule::Work LayerSchedule::next(bool may_load) {
  CACHALOT_CHECK(working_.kind == Kind::kNone);
  const std::uint64_t staged = this->staged();
  Work work;
  for (std::uint64_t i = 0; may_load && i < layers(); ++i) {
    const std::uint64_t at = (position_ + i) % layers();
    Layer& layer = layers_[at];
    if (layer.is_ready || layer.is_leaving) continue;
    if (!layer.has_memory) {
      if (on_device_ >= layerwise::most_on_device(layers(), resident_)) continue;
      if (!layer.is_resident && staged >= kStagingLayers) continue;
      layer.has_memory = true;
      on_device_ += 1;
    }
    work = {.kind = Kind::kLoad, .layer = at};
    break;
  }
  if (work.kind == Kind::kNone && !leaving_.empty()) {
    work = {.kind = Kind::kOffload, .layer = leaving_.front()};
    leaving_.pop_front();
  }
  working_ = work;
  CACHALOT_CHECK(on_device_ <= most_);
  return work;
}

void LayerSchedule::done(const Work& work, bool is_ready) {
  CACHALOT_CHECK(work.kind != Kind::kNone && work.kind == working_.kind &&
                 work.layer == working_.layer);
  working_ = {};
  Layer& layer = layers_[work.layer];
  if (work.kind == Kind::kLoad) {
    layer.is_ready = is_ready;
    return;
  }
  layer.is_leaving = layer.has_memory = false;
  on_device_ -= 1;
  most_ = std::max(layerwise::most_on_device(layers(), resident_), on_device_);
}

bool LayerSchedule::is_valid() const {
  std::uint64_t on_device = 0, leaving = 0;
  for (const Layer& layer : layers_) {
    on_device += layer.has_memory ? 1 : 0;
    leaving += layer.is_leaving ? 1 : 0;
    if (layer.is_leaving && (layer.is_ready || !layer.has_memory)) return false;
  }
  if (is_in_use_ && !layers_[position_].is_ready) return false;
  const std::uint64_t queued = leaving_.size();
  return on_device == on_device_ && on_device_ <= most_ &&
         (leaving == queued || (working_.kind == Kind::kOffload && leaving == queued + 1));
}

}  // namespace cachalot::tier::layerwise

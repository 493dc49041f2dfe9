#include "tier/layerwise/layerwise_kv.h"

#include <algorithm>
#include <cinttypes>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "tier/layerwise/resident_layers.h"

namespace cachalot::tier::layerwise {

using Kind = LayerSchedule::Kind;

LayerwiseKv::LayerwiseKv(const LayerwiseOptions& options)
    : options_(options),
      clock_(options.clock == nullptr ? &steady_clock_ : options.clock),
      schedule_(options.layers, options.resident),
      host_(options.chunk_bytes, options.host_bytes / options.chunk_bytes) {}

Result<std::unique_ptr<LayerwiseKv>> LayerwiseKv::open(device_memory::Backend& backend,
                                                       vtensor::ChunkBudget& budget,
                                                       const LayerwiseOptions& options) {
  const vtensor::KvShape shape{.layers = options.layers, .part_bytes = options.part_bytes};
  CACHALOT_TRY(shape.check());
  if (!options.copy) {
    return Error::make(Code::kInvalidArgument, "layerwise: no copy function");
  }
  // A layer is a request of its own to the set, so that each has addresses and comes and goes alone.
  CACHALOT_TRY_ASSIGN(
      auto set, vtensor::VTensorSet::open(backend, budget,
                                          {.shape = {.layers = 1, .part_bytes = options.part_bytes},
                                           .layout = options.layout,
                                           .chunk_bytes = options.chunk_bytes,
                                           .max_tokens = options.max_tokens,
                                           .with_thread = false}));
  if (options.host_bytes != 0 && options.host_bytes < options.chunk_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "layerwise: host_bytes %" PRIu64 ", expected 0 or a chunk of %" PRIu64
                       " at least",
                       options.host_bytes, options.chunk_bytes);
  }
  std::unique_ptr<LayerwiseKv> kv(new LayerwiseKv(options));
  kv->set_ = std::move(set);
  if (options.with_thread) {
    try {
      kv->thread_ = std::thread([kv = kv.get()] { kv->run(); });
    } catch (const std::system_error& error) {
      return Error::make(Code::kNoSpace, "layerwise: no thread to be had: %.120s", error.what());
    }
  }
  return kv;
}

LayerwiseKv::~LayerwiseKv() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& request : requests_) drop(*request);
}

// ---- requests

Result<LayerwiseRequest*> LayerwiseKv::add(std::uint64_t max_tokens) {
  auto request = std::make_unique<LayerwiseRequest>();
  request->max_tokens_ = max_tokens;
  request->layers_.resize(options_.layers);
  for (LayerRows& rows : request->layers_) {
    const auto created = set_->create(0, max_tokens);
    if (!created) {
      drop(*request);
      return created.error();
    }
    rows.vtensor = created->vtensor;
    rows.host.resize(set_->layout().planes());
  }
  const std::lock_guard lock(mutex_);
  requests_.push_back(std::move(request));
  return requests_.back().get();
}

// Memory that the device does not unmap stays with its vTensor.
void LayerwiseKv::drop(LayerwiseRequest& request) {
  for (LayerRows& rows : request.layers_) {
    if (rows.vtensor == nullptr) continue;
    static_cast<void>(set_->shrink(*rows.vtensor, 0));
    set_->release(rows.vtensor);
    for (const auto& plane : rows.host) {
      for (std::byte* const chunk : plane) host_.give(chunk);
    }
  }
}

Status LayerwiseKv::remove(LayerwiseRequest* request) {
  std::unique_lock lock(mutex_);
  CACHALOT_TRY(refuse_in_step("remove"));
  const auto place = std::find_if(requests_.begin(), requests_.end(),
                                  [&](const auto& each) { return each.get() == request; });
  if (place == requests_.end()) {
    return Error::make(Code::kInvalidArgument, "layerwise remove: no such request");
  }
  wait_idle(lock);
  std::erase(in_step_, request);
  drop(*request);
  requests_.erase(place);
  return {};
}

// ---- steps

Status LayerwiseKv::refuse_in_step(const char* call) const {
  if (!schedule_.is_in_step()) return {};
  return Error::make(Code::kInvalidArgument,
                     "layerwise %s: a step is in progress at layer %" PRIu64
                     ", expected the release of layer %" PRIu64 " before",
                     call, schedule_.position(), options_.layers - 1);
}

Status LayerwiseKv::check_growths(std::span<const Growth> growths) const {
  if (growths.empty()) {
    return Error::make(Code::kInvalidArgument, "layerwise begin: no requests, expected at least 1");
  }
  for (std::size_t i = 0; i < growths.size(); ++i) {
    const Growth& growth = growths[i];
    if (std::none_of(requests_.begin(), requests_.end(),
                     [&](const auto& each) { return each.get() == growth.request; })) {
      return Error::make(Code::kInvalidArgument, "layerwise begin: no such request at %zu", i);
    }
    const LayerwiseRequest& request = *growth.request;
    if (growth.tokens == 0 || growth.tokens > request.max_tokens_ - request.target_) {
      return Error::make(Code::kInvalidArgument,
                         "layerwise begin: %" PRIu64
                         " new tokens for request %zu, expected 1 to %" PRIu64,
                         growth.tokens, i, request.max_tokens_ - request.target_);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (growths[j].request != growth.request) continue;
      return Error::make(Code::kInvalidArgument,
                         "layerwise begin: requests %zu and %zu are the same one", j, i);
    }
  }
  return {};
}

// Host memory for all rows of the layers that may be offloaded, of all requests.
Status LayerwiseKv::take_host(std::span<const Growth> growths, std::uint64_t resident) {
  const vtensor::RangeLayout& layout = set_->layout();
  const auto target_of = [&](const LayerwiseRequest& request) {
    for (const Growth& growth : growths) {
      if (growth.request == &request) return request.target_ + growth.tokens;
    }
    return request.target_;
  };
  // Calls `use` with each plane that has fewer chunks than it needs.
  const auto each_short_plane = [&](const auto& use) {
    for (const auto& request : requests_) {
      const std::uint64_t target = target_of(*request);
      for (std::uint64_t layer = 0; layer < options_.layers; ++layer) {
        if (is_resident(layer, options_.layers, resident)) continue;
        for (std::uint64_t p = 0; p < layout.planes(); ++p) {
          auto& chunks = request->layers_[layer].host[p];
          const std::uint64_t count = layout.chunks(p, target);
          if (count > chunks.size()) use(chunks, count);
        }
      }
    }
  };
  std::uint64_t missing = 0;
  each_short_plane([&](auto& chunks, std::uint64_t count) { missing += count - chunks.size(); });
  CACHALOT_TRY(host_.prepare(missing));
  each_short_plane([&](auto& chunks, std::uint64_t count) {
    while (chunks.size() < count) chunks.push_back(host_.take());
  });
  return {};
}

bool LayerwiseKv::lacks(std::uint64_t layer) const {
  return std::any_of(in_step_.begin(), in_step_.end(), [&](const LayerwiseRequest* request) {
    const LayerRows& rows = request->layers_[layer];
    return !rows.is_loaded || rows.vtensor->ready_tokens() < request->target_;
  });
}

Status LayerwiseKv::begin(std::span<const Growth> growths) {
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY(offload_error_);
    CACHALOT_TRY(refuse_in_step("begin"));
    CACHALOT_TRY(check_growths(growths));
    CACHALOT_TRY(take_host(growths, schedule_.resident()));
    in_step_.clear();
    for (const Growth& growth : growths) {
      LayerwiseRequest& request = *growth.request;
      request.before_ = request.target_;
      request.target_ += growth.tokens;
      in_step_.push_back(&request);
    }
    load_error_ = {};
    schedule_.begin([this](std::uint64_t layer) { return lacks(layer); });
    begin_ns_ = now_ns();
    begin_wait_ns_ = stats_.wait_ns;
  }
  wake_.notify_one();
  return {};
}

Status LayerwiseKv::acquire(std::uint64_t layer) {
  std::unique_lock lock(mutex_);
  CACHALOT_TRY(offload_error_);
  if (!schedule_.is_in_step() || schedule_.is_in_use() || layer != schedule_.position()) {
    return Error::make(Code::kInvalidArgument,
                       "layerwise acquire: layer %" PRIu64 ", expected %s layer %" PRIu64, layer,
                       !schedule_.is_in_step() ? "begin() before"
                       : schedule_.is_in_use() ? "the release of"
                                               : "the next one,",
                       schedule_.position());
  }
  if (!schedule_.is_ready(layer)) {
    const std::uint64_t wait_ns = now_ns();
    load_error_ = {};
    wake_.notify_one();
    // If a load found no memory, offloads in flight or queued may free some, and the load is retried.
    while (!schedule_.is_ready(layer) && offload_error_ &&
           (load_error_ || is_working_ || schedule_.has_offloads())) {
      if (options_.with_thread) {
        ended_.wait(lock);
      } else {
        const LayerSchedule::Work next = schedule_.next(load_error_.ok());
        CACHALOT_CHECK(next.kind != Kind::kNone);  // rule 4 of the schedule
        work(lock, next);
      }
    }
    stats_.waits += 1;
    stats_.wait_ns += now_ns() - wait_ns;
    CACHALOT_TRY(offload_error_);
    if (!schedule_.is_ready(layer)) return load_error_;
  }
  schedule_.acquire(layer);
  return {};
}

Status LayerwiseKv::release(std::uint64_t layer) {
  {
    const std::lock_guard lock(mutex_);
    if (!schedule_.is_in_use() || layer != schedule_.position()) {
      return Error::make(Code::kInvalidArgument,
                         "layerwise release: layer %" PRIu64 ", expected one that is acquired",
                         layer);
    }
    for (LayerwiseRequest* const request : in_step_) {
      request->layers_[layer].rows = request->target_;
    }
    schedule_.release(layer);
    if (!schedule_.is_in_step()) {
      stats_.step_ns = now_ns() - begin_ns_;
      stats_.step_wait_ns = stats_.wait_ns - begin_wait_ns_;
    }
  }
  wake_.notify_one();
  return {};
}

Status LayerwiseKv::cancel() {
  {
    std::unique_lock lock(mutex_);
    if (!schedule_.is_in_step()) {
      return Error::make(Code::kInvalidArgument, "layerwise cancel: no step is in progress");
    }
    wait_idle(lock);
    for (LayerwiseRequest* const request : in_step_) {
      request->target_ = request->before_;
      for (LayerRows& rows : request->layers_) {
        rows.rows = std::min(rows.rows, request->before_);
        rows.host_rows = std::min(rows.host_rows, request->before_);
        CACHALOT_TRY(set_->shrink(*rows.vtensor, request->before_));
      }
    }
    schedule_.cancel();
  }
  wake_.notify_one();
  return {};
}

Status LayerwiseKv::set_resident(std::uint64_t resident) {
  {
    std::unique_lock lock(mutex_);
    CACHALOT_TRY(offload_error_);
    CACHALOT_TRY(refuse_in_step("set_resident"));
    CACHALOT_TRY(take_host({}, resident));
    wait_idle(lock);
    schedule_.set_resident(resident);
  }
  wake_.notify_one();
  return {};
}

// ---- the thread

void LayerwiseKv::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const LayerSchedule::Work next =
        offload_error_ ? schedule_.next(load_error_.ok()) : LayerSchedule::Work();
    if (next.kind == Kind::kNone) {
      wake_.wait(lock);
    } else {
      work(lock, next);
    }
  }
}

bool LayerwiseKv::work_once() {
  std::unique_lock lock(mutex_);
  if (!offload_error_) return false;
  const LayerSchedule::Work next = schedule_.next(load_error_.ok());
  if (next.kind == Kind::kNone) return false;
  work(lock, next);
  return true;
}

// The thread starts no work while the lock is held.
void LayerwiseKv::wait_idle(std::unique_lock<std::mutex>& lock) {
  ended_.wait(lock, [this] { return !is_working_; });
}

std::vector<LayerwiseKv::Item> LayerwiseKv::items_of(const LayerSchedule::Work& work) const {
  std::vector<Item> items;
  const auto add = [&](LayerwiseRequest& request) {
    items.push_back({.rows = &request.layers_[work.layer], .target = request.target_});
  };
  if (work.kind == Kind::kLoad) {
    for (LayerwiseRequest* const request : in_step_) add(*request);
  } else {
    for (const auto& request : requests_) add(*request);
  }
  return items;
}

void LayerwiseKv::work(std::unique_lock<std::mutex>& lock, const LayerSchedule::Work& work) {
  std::vector<Item> items = items_of(work);
  is_working_ = true;
  lock.unlock();
  LayerwiseStats spent;
  Status done;
  for (Item& item : items) {
    done = work.kind == Kind::kLoad ? load(item, spent) : offload(item, spent);
    if (!done) break;
    item.is_done = true;
  }
  const std::uint64_t used = set_->stats().chunks.used * options_.chunk_bytes;
  lock.lock();
  is_working_ = false;
  stats_.peak_device_bytes = std::max(stats_.peak_device_bytes, used);
  stats_.loads += work.kind == Kind::kLoad ? 1 : 0;
  stats_.offloads += work.kind == Kind::kLoad ? 0 : 1;
  stats_.loaded_bytes += spent.loaded_bytes;
  stats_.load_ns += spent.load_ns;
  stats_.offloaded_bytes += spent.offloaded_bytes;
  stats_.offload_ns += spent.offload_ns;
  stats_.map_ns += spent.map_ns;
  finish(work, items, done);
  ended_.notify_all();
}

void LayerwiseKv::finish(const LayerSchedule::Work& work, std::span<const Item> items,
                         const Status& done) {
  for (const Item& item : items) {
    if (!item.is_done) continue;
    item.rows->is_loaded = work.kind == Kind::kLoad;
    if (work.kind == Kind::kOffload) item.rows->host_rows = item.rows->rows;
  }
  if (work.kind == Kind::kLoad) {
    if (!done) load_error_ = done;
    schedule_.done(work, done && !lacks(work.layer));
  } else {
    if (!done) offload_error_ = done;
    load_error_ = {};
    schedule_.done(work);
  }
}

Status LayerwiseKv::load(const Item& item, LayerwiseStats& spent) {
  const std::uint64_t begin_ns = now_ns();
  CACHALOT_TRY(set_->extend(*item.rows->vtensor, item.target));
  const std::uint64_t mapped_ns = now_ns();
  spent.map_ns += mapped_ns - begin_ns;
  if (item.rows->is_loaded) return {};
  CACHALOT_TRY(copy_rows(*item.rows, 0, item.rows->rows, false));
  spent.load_ns += now_ns() - mapped_ns;
  spent.loaded_bytes += set_->layout().kv_bytes(item.rows->rows);
  return {};
}

Status LayerwiseKv::offload(const Item& item, LayerwiseStats& spent) {
  const std::uint64_t begin_ns = now_ns();
  CACHALOT_TRY(copy_rows(*item.rows, item.rows->host_rows, item.rows->rows, true));
  const std::uint64_t copied_ns = now_ns();
  spent.offload_ns += copied_ns - begin_ns;
  spent.offloaded_bytes += set_->layout().kv_bytes(item.rows->rows - item.rows->host_rows);
  CACHALOT_TRY(set_->shrink(*item.rows->vtensor, 0));
  spent.map_ns += now_ns() - copied_ns;
  return {};
}

// Rows [from, to) of all planes, by pieces of a host chunk.
Status LayerwiseKv::copy_rows(const LayerRows& rows, std::uint64_t from, std::uint64_t to,
                              bool to_host) const {
  const vtensor::RangeLayout& layout = set_->layout();
  const std::uint64_t chunk = options_.chunk_bytes;
  for (std::uint64_t p = 0; p < layout.planes(); ++p) {
    const vtensor::RangeLayout::Plane& plane = layout.plane(p);
    const device_memory::Address device = rows.vtensor->base() + plane.at;
    const std::uint64_t end = to * plane.token_bytes;
    for (std::uint64_t at = from * plane.token_bytes; at < end;) {
      const std::uint64_t bytes = std::min(end, (at / chunk + 1) * chunk) - at;
      const auto host =
          reinterpret_cast<device_memory::Address>(rows.host[p][at / chunk]) + at % chunk;
      CACHALOT_TRY(to_host ? options_.copy(host, device + at, bytes)
                           : options_.copy(device + at, host, bytes));
      at += bytes;
    }
  }
  return {};
}

// ---- figures

LayerwiseStats LayerwiseKv::stats() const {
  const std::lock_guard lock(mutex_);
  LayerwiseStats stats = stats_;
  stats.requests = requests_.size();
  stats.resident = schedule_.resident();
  stats.device_bytes = set_->stats().chunks.used * options_.chunk_bytes;
  for (const auto& request : requests_) {
    stats.all_bytes +=
        options_.layers * set_->layout().chunks(request->target_) * options_.chunk_bytes;
  }
  stats.host_bytes = host_.bytes();
  return stats;
}

void LayerwiseKv::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_device_bytes = set_->stats().chunks.used * options_.chunk_bytes;
}

}  // namespace cachalot::tier::layerwise

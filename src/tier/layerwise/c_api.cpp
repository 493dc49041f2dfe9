// The C ABI: include/cachalot/layerwise.h over LayerwiseKv.
#include <cachalot/layerwise.h>

#include <cinttypes>
#include <memory>
#include <string_view>
#include <vector>

#include "base/c_boundary.h"
#include "device_memory/open/open_backend.h"
#include "tier/layerwise/layerwise_kv.h"
#include "tier/layerwise/resident_layers.h"
#include "vtensor/c_copy.h"

using namespace cachalot;                   // NOLINT: this file is nothing but a translation
using namespace cachalot::tier::layerwise;  // NOLINT
using base::code_of;
using base::fail;
using base::guarded;
using base::missing;

// In the order in which it can be taken apart, from the end.
struct cachalot_layerwise {
  std::unique_ptr<device_memory::Backend> backend;
  std::unique_ptr<vtensor::ChunkBudget> budget;
  std::unique_ptr<LayerwiseKv> kv;
  std::uint64_t layers = 0;
};

namespace {

constexpr std::uint64_t kDefaultChunkBytes = std::uint64_t{2} << 20;

LayerwiseRequest* request_of(cachalot_layerwise_request* request) {
  return reinterpret_cast<LayerwiseRequest*>(request);
}

Result<std::unique_ptr<cachalot_layerwise>> open_layerwise(
    const cachalot_layerwise_options* given) {
  CACHALOT_TRY_ASSIGN(const cachalot_layerwise_options options,
                      base::read_struct(given, "layerwise options"));
  const std::string_view device = options.device == nullptr ? "memfd" : options.device;
  const std::uint64_t chunk_bytes =
      options.chunk_bytes == 0 ? kDefaultChunkBytes : options.chunk_bytes;
  LayerwiseOptions how{.layers = options.layers,
                       .part_bytes = {options.part_bytes[0]},
                       .max_tokens = options.max_tokens,
                       .resident = options.resident,
                       .chunk_bytes = chunk_bytes,
                       .host_bytes = options.host_bytes,
                       .copy = vtensor::copy_of(options.copy, options.copy_context, device)};
  if (options.part_bytes[1] != 0) how.part_bytes.push_back(options.part_bytes[1]);
  CACHALOT_TRY_ASSIGN(how.layout, vtensor::parse_kv_layout(
                                      options.layout == nullptr ? "per_layer" : options.layout));
  if (options.limit_bytes != 0 && options.limit_bytes < chunk_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "layerwise options: limit_bytes %" PRIu64 ", expected a chunk of %" PRIu64
                       " at least",
                       options.limit_bytes, chunk_bytes);
  }
  auto layerwise = std::make_unique<cachalot_layerwise>();
  layerwise->layers = options.layers;
  CACHALOT_TRY_ASSIGN(layerwise->backend, device_memory::open_backend(device));
  layerwise->budget = std::make_unique<vtensor::LocalBudget>(
      options.limit_bytes == 0 ? vtensor::LocalBudget::kNoLimit
                               : options.limit_bytes / chunk_bytes);
  CACHALOT_TRY_ASSIGN(layerwise->kv,
                      LayerwiseKv::open(*layerwise->backend, *layerwise->budget, how));
  return layerwise;
}

cachalot_layerwise_statistics statistics_of(const LayerwiseStats& stats) {
  cachalot_layerwise_statistics out{};
  out.requests = static_cast<std::uint32_t>(stats.requests);
  out.resident = stats.resident;
  out.device_bytes = stats.device_bytes;
  out.peak_device_bytes = stats.peak_device_bytes;
  out.all_bytes = stats.all_bytes;
  out.host_bytes = stats.host_bytes;
  out.offloads = stats.offloads;
  out.offloaded_bytes = stats.offloaded_bytes;
  out.offload_ns = stats.offload_ns;
  out.loads = stats.loads;
  out.loaded_bytes = stats.loaded_bytes;
  out.load_ns = stats.load_ns;
  out.map_ns = stats.map_ns;
  out.waits = stats.waits;
  out.wait_ns = stats.wait_ns;
  out.step_ns = stats.step_ns;
  out.step_wait_ns = stats.step_wait_ns;
  return out;
}

}  // namespace

extern "C" {

cachalot_code cachalot_layerwise_open(const cachalot_layerwise_options* options,
                                      cachalot_layerwise** layerwise) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    *layerwise = nullptr;
    auto opened = open_layerwise(options);
    if (!opened) return fail(opened.error());
    *layerwise = opened->release();
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_layerwise_close(cachalot_layerwise* layerwise) {
  return guarded([&] {
    delete layerwise;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_layerwise_view(const cachalot_layerwise* layerwise, uint32_t part,
                                      uint64_t* offset, uint64_t* stride) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    const std::uint64_t parts = layerwise->kv->parts();
    if (part >= parts) {
      return fail(Error::make(Code::kInvalidArgument,
                              "layerwise view: part %u, expected one of %" PRIu64, part, parts));
    }
    const auto view = layerwise->kv->view(part);
    if (offset != nullptr) *offset = view.offset;
    if (stride != nullptr) *stride = view.stride;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_layerwise_add(cachalot_layerwise* layerwise, uint64_t max_tokens,
                                     cachalot_layerwise_request** request, uint64_t* bases) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    if (request == nullptr) return missing("request");
    *request = nullptr;
    const Result<LayerwiseRequest*> added = layerwise->kv->add(max_tokens);
    if (!added) return fail(added.error());
    for (std::uint64_t layer = 0; bases != nullptr && layer < layerwise->layers; ++layer) {
      bases[layer] = (*added)->base(layer);
    }
    *request = reinterpret_cast<cachalot_layerwise_request*>(*added);
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_layerwise_remove(cachalot_layerwise* layerwise,
                                        cachalot_layerwise_request* request) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    return code_of(layerwise->kv->remove(request_of(request)));
  });
}

cachalot_code cachalot_layerwise_begin(cachalot_layerwise* layerwise,
                                       cachalot_layerwise_request* const* requests,
                                       const uint64_t* tokens, uint64_t count) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    if (requests == nullptr && count != 0) return missing("requests");
    if (tokens == nullptr && count != 0) return missing("tokens");
    std::vector<LayerwiseKv::Growth> growths(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      growths[i] = {.request = request_of(requests[i]), .tokens = tokens[i]};
    }
    return code_of(layerwise->kv->begin(growths));
  });
}

cachalot_code cachalot_layerwise_acquire(cachalot_layerwise* layerwise, uint32_t layer) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    return code_of(layerwise->kv->acquire(layer));
  });
}

cachalot_code cachalot_layerwise_release(cachalot_layerwise* layerwise, uint32_t layer) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    return code_of(layerwise->kv->release(layer));
  });
}

cachalot_code cachalot_layerwise_cancel(cachalot_layerwise* layerwise) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    return code_of(layerwise->kv->cancel());
  });
}

cachalot_code cachalot_layerwise_set_resident(cachalot_layerwise* layerwise, uint64_t resident) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    return code_of(layerwise->kv->set_resident(resident));
  });
}

cachalot_code cachalot_layerwise_fewest_resident(uint64_t layers, uint64_t layer_bytes,
                                                 uint64_t compute_ns, double bytes_per_second,
                                                 uint64_t* resident) {
  return guarded([&] {
    if (resident == nullptr) return missing("resident");
    const Result<std::uint64_t> fewest = fewest_resident({.layers = layers,
                                                          .layer_bytes = layer_bytes,
                                                          .compute_ns = compute_ns,
                                                          .bytes_per_second = bytes_per_second});
    if (!fewest) return fail(fewest.error());
    *resident = *fewest;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_layerwise_get_statistics(const cachalot_layerwise* layerwise,
                                                cachalot_layerwise_statistics* statistics) {
  return guarded([&] {
    if (layerwise == nullptr) return missing("layerwise");
    const auto known = base::read_struct(statistics, "layerwise statistics");
    if (!known) return fail(known.error());
    base::write_struct(statistics_of(layerwise->kv->stats()), statistics);
    return CACHALOT_OK;
  });
}

}  // extern "C"

// For tests: a LayerwiseKv on real memory, and a computation that writes rows and reads all rows of a layer back.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device_memory/memfd/memfd_backend.h"
#include "tier/layerwise/layerwise_kv.h"
#include "tier/layerwise/resident_layers.h"

namespace cachalot::tier::layerwise {

class TestKv {
 public:
  static constexpr std::uint64_t kRowBytes = 4096;  // of a part: 512 tokens a chunk
  static constexpr std::uint64_t kMaxTokens = 2000;

  static LayerwiseOptions options(std::uint64_t layers, std::uint64_t resident) {
    return {.layers = layers,
            .part_bytes = {kRowBytes, kRowBytes},
            .max_tokens = kMaxTokens,
            .resident = resident};
  }

  explicit TestKv(const LayerwiseOptions& options,
                  std::uint64_t limit_chunks = vtensor::LocalBudget::kNoLimit)
      : layers_(options.layers),
        backend_(*device_memory::MemfdBackend::open()),
        budget_(limit_chunks) {
    auto opened = LayerwiseKv::open(*backend_, budget_, options);
    EXPECT_TRUE(opened) << opened.error().message;
    kv_ = *std::move(opened);
  }

  LayerwiseKv& kv() { return *kv_; }
  std::uint64_t layers() const { return layers_; }
  LayerwiseRequest* add() { return *kv_->add(kMaxTokens); }

  // A step over all layers. @return what is wrong; empty: nothing
  std::string step(const std::vector<LayerwiseKv::Growth>& growths) {
    if (const Status begun = kv_->begin(growths); !begun) return begun.error().message;
    for (std::uint64_t layer = 0; layer < layers_; ++layer) {
      if (const std::string wrong = compute(growths, layer); !wrong.empty()) return wrong;
    }
    return {};
  }

  std::string compute(const std::vector<LayerwiseKv::Growth>& growths, std::uint64_t layer) {
    if (const Status acquired = kv_->acquire(layer); !acquired) return acquired.error().message;
    if (layer == 0) sign(growths);
    for (const LayerwiseKv::Growth& growth : growths) {
      const std::uint64_t tokens = growth.request->tokens();
      for (std::uint64_t t = tokens - growth.tokens; t < tokens; ++t)
        mark(*growth.request, layer, t);
      for (std::uint64_t t = 0; t < tokens; ++t) {
        if (!is_marked(*growth.request, layer, t)) {
          return "row " + std::to_string(t) + " of layer " + std::to_string(layer) + " is wrong";
        }
      }
    }
    const Status released = kv_->release(layer);
    return released ? std::string() : released.error().message;
  }

  // The bound of the whole module, in bytes that are mapped.
  std::string over_bound() const {
    const LayerwiseStats stats = kv_->stats();
    const std::uint64_t most = most_on_device(layers_, stats.resident);
    if (stats.peak_device_bytes * layers_ <= most * stats.all_bytes) return {};
    return std::to_string(stats.peak_device_bytes) + " of " + std::to_string(stats.all_bytes) +
           " bytes on the device, expected at most " + std::to_string(most) + "/" +
           std::to_string(layers_);
  }

 private:
  // The beginning and the end of each row: a row of another layer, request, part or token differs.
  std::uint64_t* cell(LayerwiseRequest& request, std::uint64_t layer, std::uint64_t part,
                      std::uint64_t token, bool is_end) const {
    const auto view = kv_->view(part);
    return reinterpret_cast<std::uint64_t*>(request.base(layer) + view.offset +
                                            token * view.stride + (is_end ? kRowBytes - 8 : 0));
  }
  // Rows that are written again after a cancelled step differ from those before.
  void sign(const std::vector<LayerwiseKv::Growth>& growths) {
    steps_ += 1;
    for (const LayerwiseKv::Growth& growth : growths) {
      const std::uint64_t tokens = growth.request->tokens();
      std::vector<std::uint64_t>& steps = written_[growth.request];
      steps.resize(tokens - growth.tokens);
      steps.resize(tokens, steps_);
    }
  }
  std::uint64_t value(LayerwiseRequest& request, std::uint64_t layer, std::uint64_t part,
                      std::uint64_t token, bool is_end) const {
    const std::uint64_t place = (layer * 2 + part) * 2 + (is_end ? 1 : 0);
    return base::mix64(
        reinterpret_cast<std::uint64_t>(&request) +
        base::mix64((written_.at(&request)[token] << 32) + place * kMaxTokens + token));
  }
  void mark(LayerwiseRequest& request, std::uint64_t layer, std::uint64_t token) {
    for (const std::uint64_t part : {0, 1}) {
      for (const bool is_end : {false, true}) {
        *cell(request, layer, part, token, is_end) = value(request, layer, part, token, is_end);
      }
    }
  }
  bool is_marked(LayerwiseRequest& request, std::uint64_t layer, std::uint64_t token) const {
    for (const std::uint64_t part : {0, 1}) {
      for (const bool is_end : {false, true}) {
        if (*cell(request, layer, part, token, is_end) !=
            value(request, layer, part, token, is_end))
          return false;
      }
    }
    return true;
  }

  const std::uint64_t layers_;
  std::uint64_t steps_ = 0;
  std::map<LayerwiseRequest*, std::vector<std::uint64_t>> written_;  // in which step each token was
  std::unique_ptr<device_memory::MemfdBackend> backend_;
  vtensor::LocalBudget budget_;
  std::unique_ptr<LayerwiseKv> kv_;
};

}  // namespace cachalot::tier::layerwise

#include "kv/plan.h"

#include <string_view>
#include <type_traits>

namespace cachalot::kv {
namespace {

static_assert(std::is_trivially_copyable_v<Plan>, "it goes into a kernel's arguments");

// A dimension before merging, with its places on both sides for each part.
struct Axis {
  PlanDimension dimension;
  bool outer = false;  // outside of the part
  bool fixed = false;  // never merged: pages, layers that are tensors, single tokens; all of kRow
  bool tokens = false;
  std::uint64_t engine[kParts] = {}, pool[kParts] = {};
};

constexpr std::uint32_t kMaxAxes = kMaxDimensions;  // L, B, N, H

struct Sketch {
  Axis axes[kMaxAxes];
  std::uint32_t count = 0;
  PlanPart part[kParts];
  std::uint32_t parts = 0;

  void append(const Axis& axis) { axes[count++] = axis; }
  void push(const Axis& axis) {
    if (axis.dimension.count > 1) append(axis);
  }
  void drop_last() { --count; }
};

// Where a pool order puts each dimension, of each part.
struct PoolStrides {
  std::uint64_t offset[kParts] = {};
  std::uint64_t layer[kParts] = {}, token[kParts] = {}, head[kParts] = {};
};

PoolStrides pool_strides(std::string_view order, const KvGeometry& g) {
  PoolStrides out;
  std::uint64_t bytes[kParts] = {g.content_bytes(0), g.content_bytes(1)};
  for (std::size_t i = order.size() - 1; i-- > 0;) {
    if (order[i] == 'K') {
      out.offset[1] = bytes[0];
      bytes[0] = bytes[1] = bytes[0] + bytes[1];
      continue;
    }
    const std::uint64_t extent = order[i] == 'L'   ? g.layers
                                 : order[i] == 'N' ? g.block_tokens
                                                   : g.heads();
    for (std::uint32_t k = 0; k < kParts; ++k) {
      (order[i] == 'L' ? out.layer : order[i] == 'N' ? out.token : out.head)[k] = bytes[k];
      bytes[k] *= extent;
    }
  }
  return out;
}

// What the engine's side and the pool's have in common, dimension by dimension in pool order.
class Sketcher {
 public:
  Sketcher(const EngineCache& cache, std::string_view order, LayerRange layers, Grain grain)
      : cache_(cache),
        pool_(pool_strides(order, cache.geometry())),
        layers_(layers),
        is_by_row_(grain == Grain::kRow) {
    bool outer = true;
    for (const char dimension : order) {
      if (dimension == 'K') outer = false;
      if (dimension == 'L') add_layers(outer);
      if (dimension == 'H') add_heads(outer);
      if (dimension == 'N' && grain != Grain::kPage) add_tokens(outer);
      if (dimension == 'N' && grain == Grain::kPage) add_pages(outer);
    }
    add_parts();
  }

  Sketch take() const { return sketch_; }

 private:
  const PartStrides& strides(std::uint32_t k) const { return cache_.strides().part[k]; }

  void add_layers(bool outer) {
    Axis axis;
    axis.outer = outer;
    axis.dimension.count = layers_.last - layers_.first;
    axis.dimension.tensor_step = strides(0).layer_tensors;
    axis.fixed = axis.dimension.tensor_step != 0;
    for (std::uint32_t k = 0; k < kParts; ++k) {
      axis.engine[k] = strides(k).layer;
      axis.pool[k] = pool_.layer[k];
    }
    push(axis);
  }

  void add_heads(bool outer) {
    Axis axis;
    axis.outer = outer;
    axis.dimension.count = cache_.geometry().heads();
    for (std::uint32_t k = 0; k < kParts; ++k) {
      axis.engine[k] = strides(k).head;
      axis.pool[k] = pool_.head[k];
    }
    push(axis);
  }

  void add_pages(bool outer) {
    Axis pages;
    pages.outer = outer;
    pages.fixed = true;
    pages.dimension.count = cache_.pages_per_block();
    pages.dimension.steps_per_page = 1;
    Axis tokens;
    tokens.outer = outer;
    tokens.dimension.count = cache_.page_tokens();
    for (std::uint32_t k = 0; k < kParts; ++k) {
      pages.pool[k] = cache_.page_tokens() * pool_.token[k];
      tokens.engine[k] = strides(k).token;
      tokens.pool[k] = pool_.token[k];
    }
    sketch_.push(pages);
    sketch_.push(tokens);
  }

  // Every token of the block a step of its own, also where there is only one.
  void add_tokens(bool outer) {
    Axis tokens;
    tokens.outer = outer;
    tokens.fixed = tokens.tokens = true;
    tokens.dimension.count = cache_.geometry().block_tokens;
    tokens.dimension.steps_per_page = cache_.page_tokens();
    for (std::uint32_t k = 0; k < kParts; ++k) {
      tokens.engine[k] = strides(k).token;
      tokens.pool[k] = pool_.token[k];
    }
    sketch_.append(tokens);
  }

  void push(Axis& axis) {
    axis.fixed |= is_by_row_;
    is_by_row_ ? sketch_.append(axis) : sketch_.push(axis);
  }

  void add_parts() {
    for (std::uint32_t k = 0; k < kParts; ++k) {
      const std::uint64_t bytes = cache_.geometry().content_bytes(k);
      if (bytes == 0) continue;
      PlanPart& part = sketch_.part[sketch_.parts++];
      part.run_bytes = bytes;
      part.tensor = strides(k).tensor + layers_.first * strides(k).layer_tensors;
      part.engine_offset = strides(k).offset + layers_.first * strides(k).layer;
      part.pool_offset = pool_.offset[k] + layers_.first * pool_.layer[k];
      part.page_stride = strides(k).page;
    }
  }

  const EngineCache& cache_;
  const PoolStrides pool_;
  const LayerRange layers_;
  const bool is_by_row_;
  Sketch sketch_;
};

// The innermost dimension goes into the run, if it steps by exactly a run on both sides.
bool merge_dimension(Sketch& sketch) {
  if (sketch.count == 0) return false;
  const Axis& axis = sketch.axes[sketch.count - 1];
  if (axis.fixed || (axis.outer && sketch.parts > 1)) return false;
  for (std::uint32_t k = 0; k < sketch.parts; ++k) {
    const std::uint64_t run = sketch.part[k].run_bytes;
    if (axis.engine[k] != run || axis.pool[k] != run) return false;
  }
  for (std::uint32_t k = 0; k < sketch.parts; ++k) {
    sketch.part[k].run_bytes *= axis.dimension.count;
  }
  sketch.drop_last();
  return true;
}

// The second part follows the first on both sides, and nothing varies faster than the part.
bool merge_parts(Sketch& sketch) {
  if (sketch.parts != 2) return false;
  PlanPart &a = sketch.part[0], &b = sketch.part[1];
  if (a.tensor != b.tensor || a.page_stride != b.page_stride ||
      b.engine_offset != a.engine_offset + a.run_bytes ||
      b.pool_offset != a.pool_offset + a.run_bytes) {
    return false;
  }
  for (std::uint32_t i = 0; i < sketch.count; ++i) {
    const Axis& axis = sketch.axes[i];
    if (!axis.outer || axis.engine[0] != axis.engine[1] || axis.pool[0] != axis.pool[1]) {
      return false;
    }
  }
  a.run_bytes += b.run_bytes;
  sketch.parts = 1;
  return true;
}

Plan finish(const Sketch& sketch) {
  Plan plan;
  plan.parts = sketch.parts;
  plan.dimensions = sketch.count;
  for (std::uint32_t k = 0; k < sketch.parts; ++k) plan.part[k] = sketch.part[k];
  for (std::uint32_t d = 0; d < sketch.count; ++d) {
    const Axis& axis = sketch.axes[d];
    plan.dimension[d] = axis.dimension;
    if (axis.outer) plan.outer_dimensions = d + 1;
    if (axis.tokens) plan.token_dimension = d;
    for (std::uint32_t k = 0; k < sketch.parts; ++k) {
      plan.part[k].engine_stride[d] = axis.engine[k];
      plan.part[k].pool_stride[d] = axis.pool[k];
    }
  }
  return plan;
}

}  // namespace

Result<CopyPlan> CopyPlan::compile(const EngineCache& cache, const BlockOrder& order,
                                   LayerRange layers, Grain grain) {
  const KvGeometry& g = cache.geometry();
  if (layers.last == 0) layers.last = g.layers;
  if (layers.first >= layers.last || layers.last > g.layers) {
    return Error::make(Code::kInvalidArgument,
                       "copy plan: layers %u to %u, expected a range within 0 to %u", layers.first,
                       layers.last, g.layers);
  }
  Sketch sketch = Sketcher(cache, order.order(g.attention), layers, grain).take();
  while (merge_dimension(sketch) || merge_parts(sketch)) {
  }
  CopyPlan out;
  out.plan_ = finish(sketch);
  out.block_bytes_ = g.block_bytes();
  out.copied_bytes_ = (layers.last - layers.first) * g.layer_bytes();
  return out;
}

CopyPlan CopyPlan::of_blocks(const Plan& arithmetic, std::uint64_t block_bytes) {
  CopyPlan out;
  out.plan_ = arithmetic;
  out.block_bytes_ = out.copied_bytes_ = block_bytes;
  return out;
}

}  // namespace cachalot::kv

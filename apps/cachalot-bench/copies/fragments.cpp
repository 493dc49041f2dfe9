#include "fragments.h"

#include <immintrin.h>

#include <algorithm>

#include "kv/walk.h"

namespace cachalot::apps::bench {

using geometry::KvGeometry;

namespace {

constexpr std::uint64_t kMostBlockBytes = std::uint64_t{8} << 20;

}  // namespace

Model model_of(const char* preset, std::uint32_t block_tokens, std::uint32_t tp_size) {
  const Result<const geometry::ModelPreset*> found = geometry::find_preset(preset);
  if (!found) return {};
  const Result<KvGeometry> g =
      geometry::from_preset(**found, geometry::DType::kBf16, block_tokens, 0, tp_size);
  if (!g) return {};
  // A block that takes milliseconds is seldom copied without a preemption: fewer layers, the same
  // fragments.
  KvGeometry cut = *g;
  cut.layers = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kMostBlockBytes / g->layer_bytes(), 1, g->layers));
  std::string name = preset;
  if (tp_size != 1) name += "/tp" + std::to_string(tp_size);
  const bool latent = g->attention == geometry::Attention::kLatent;
  return {name + "/" + std::to_string(block_tokens), cut, latent ? "mla_joint" : "vllm_kbnhc"};
}

Model synthetic_model() {
  KvGeometry g;
  g.layers = 64;
  g.kv_heads = 5;
  g.head_dim = 128;
  g.block_tokens = 16;
  return {"128x20KB", g, "vllm_kbnhc"};
}

Result<PagedBench> PagedBench::make(const Model& model, std::uint64_t own_bytes,
                                    std::uint64_t pool_bytes) {
  CACHALOT_TRY(model.geometry.check());
  const std::uint64_t tensor_page = model.geometry.layer_bytes();
  const std::uint64_t block = model.geometry.block_bytes();
  const auto pages = static_cast<std::uint32_t>(std::max<std::uint64_t>(own_bytes / block, 2));
  pool_bytes = std::max(pool_bytes, 2 * block);
  pool_bytes =
      (pool_bytes + memory::kStripeBytes - 1) / memory::kStripeBytes * memory::kStripeBytes;
  CACHALOT_TRY_ASSIGN(memory::DeviceSet pool,
                      memory::DeviceSet::create({"memfd:bench"}, pool_bytes));
  CACHALOT_TRY_ASSIGN(PrivateMemory own, PrivateMemory::make(pages * block));
  std::vector<kv::Tensor> tensors;
  for (std::uint32_t l = 0; l < model.geometry.layers; ++l) {
    tensors.push_back({own.at(l * pages * tensor_page), pages * tensor_page});
  }
  CACHALOT_TRY_ASSIGN(kv::EngineCache cache,
                      kv::EngineCache::make({model.geometry, 0, pages, 0}, model.layout, tensors));
  return PagedBench(std::move(pool), std::move(own), std::move(cache));
}

kv::BlockCopy PagedBench::next() {
  extent_ = place(rng_.below(places()));
  pages_ = {static_cast<std::uint32_t>(rng_.below(cache_.pages()))};
  return {{&extent_, 1}, pages_};
}

const std::vector<PagedBench::Piece>& PagedBench::pieces() {
  if (found_.empty()) {
    const Result<kv::CopyPlan> plan = kv::CopyPlan::compile(cache_, kv::default_block_order());
    if (!plan) return pieces_;
    kv::for_each_fragment(plan->arithmetic(), {}, [&](const kv::Fragment& f) {
      found_.push_back(
          {f.engine_offset, f.pool_offset, f.bytes, cache_.bases()[f.tensor], f.page_stride});
    });
    pieces_.resize(found_.size());
  }
  for (std::size_t i = 0; i < found_.size(); ++i) {
    const Found& f = found_[i];
    pieces_[i] = {f.base + f.own_offset + pages_[0] * f.page_stride, extent_.at + f.pool_offset,
                  f.bytes};
  }
  return pieces_;
}

void copy_pieces_in(Copy copy, memory::DomainKind domain,
                    const std::vector<PagedBench::Piece>& pieces) {
  const bool flushes = domain != memory::DomainKind::kCoherent && copy != Copy::kNonTemporal;
  for (const PagedBench::Piece& piece : pieces)
    copy_plain(copy, piece.pool, piece.own, piece.bytes);
  if (flushes) {
    for (const PagedBench::Piece& piece : pieces) flush_lines(piece.pool, piece.bytes);
  }
  _mm_sfence();
}

void copy_pieces_out(Copy copy, memory::DomainKind domain,
                     const std::vector<PagedBench::Piece>& pieces) {
  if (domain != memory::DomainKind::kCoherent) {
    _mm_mfence();
    for (const PagedBench::Piece& piece : pieces) flush_lines(piece.pool, piece.bytes);
    _mm_mfence();
  }
  for (const PagedBench::Piece& piece : pieces)
    copy_plain(copy, piece.own, piece.pool, piece.bytes);
  _mm_sfence();
}

}  // namespace cachalot::apps::bench

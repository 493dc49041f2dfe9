// Each layout against the shape that its engine publishes, written out as a formula.
#include "kv/layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "kv/block_order.h"
#include "kv/engine_cache.h"

namespace cachalot::kv {
namespace {

using geometry::DType;

// 3 layers, 5 pages of 4 tokens, 2 heads of 8 numbers of 2 bytes; or a latent of 16 and 4 numbers.
constexpr std::uint64_t L = 3, B = 5, N = 4, H = 2, C = 16;
constexpr std::uint64_t kLatent = 32, kRope = 8, R = kLatent + kRope;

CacheShape shape_of(Attention attention) {
  CacheShape shape;
  shape.geometry.layers = L;
  shape.geometry.attention = attention;
  if (attention == Attention::kGrouped) {
    shape.geometry.kv_heads = H;
    shape.geometry.head_dim = C / 2;
  } else {
    shape.geometry.kv_lora_rank = kLatent / 2;
    shape.geometry.qk_rope_head_dim = kRope / 2;
  }
  shape.geometry.block_tokens = N;
  shape.pages = B;
  return shape;
}

struct At {
  std::uint64_t tensor, offset;
  bool operator==(const At&) const = default;
};

At place(const EngineStrides& strides, std::uint64_t k, std::uint64_t l, std::uint64_t b,
         std::uint64_t h, std::uint64_t n) {
  const PartStrides& p = strides.part[k];
  return {p.tensor + l * p.layer_tensors,
          p.offset + l * p.layer + b * p.page + h * p.head + n * p.token};
}

using Formula = At (*)(std::uint64_t k, std::uint64_t l, std::uint64_t b, std::uint64_t h,
                       std::uint64_t n);
struct Published {
  const char* name;
  Formula grouped, latent;
};

#define AT(tensor, offset)                                                                  \
  [](std::uint64_t k, std::uint64_t l, std::uint64_t b, std::uint64_t h, std::uint64_t n) { \
    (void)k, (void)l, (void)b, (void)h, (void)n;                                            \
    return At{tensor, offset};                                                              \
  }
// A slot is a token's place in the whole cache.
const Published kPublished[] = {
    {"vllm_kbnhc", AT(l, (((k * B + b) * N + n) * H + h) * C), nullptr},
    {"vllm_kbhnc", AT(l, (((k * B + b) * H + h) * N + n) * C), nullptr},
    {"vllm_bknhc", AT(l, (((b * 2 + k) * N + n) * H + h) * C), nullptr},
    {"vllm_bkhnc", AT(l, (((b * 2 + k) * H + h) * N + n) * C), nullptr},
    {"vllm_bnhkc", AT(l, ((b * N + n) * H + h) * 2 * C + k * C), nullptr},
    {"vllm_bhnkc", AT(l, ((b * H + h) * N + n) * 2 * C + k * C), nullptr},
    {"split_bnhc", AT(l * 2 + k, ((b * N + n) * H + h) * C), nullptr},
    {"split_bhnc", AT(l * 2 + k, ((b * H + h) * N + n) * C), nullptr},
    {"vllm_lbhnc", AT(0, (((l * B + b) * H + h) * N + n) * 2 * C + k * C),
     AT(0, ((l * B + b) * N + n) * R + k * kLatent)},
    {"vllm_lbnhc", AT(0, (((l * B + b) * N + n) * H + h) * 2 * C + k * C),
     AT(0, ((l * B + b) * N + n) * R + k * kLatent)},
    {"vllm_lhbnc", AT(0, (((l * H + h) * B + b) * N + n) * 2 * C + k * C),
     AT(0, ((l * B + b) * N + n) * R + k * kLatent)},
    {"vllm_blhnc", AT(0, (((b * L + l) * H + h) * N + n) * 2 * C + k * C),
     AT(0, ((b * L + l) * N + n) * R + k * kLatent)},
    {"vllm_blnhc", AT(0, (((b * L + l) * N + n) * H + h) * 2 * C + k * C),
     AT(0, ((b * L + l) * N + n) * R + k * kLatent)},
    {"vllm_bhlnc", AT(0, (((b * H + h) * L + l) * N + n) * 2 * C + k * C),
     AT(0, ((b * L + l) * N + n) * R + k * kLatent)},
    {"mla_joint", nullptr, AT(l, (b * N + n) * R + k * kLatent)},
    {"mla_split", nullptr, AT(l * 2 + k, (b * N + n) * (k == 0 ? kLatent : kRope))},
    {"sglang_device", AT(k* L + l, ((b * N + n) * H + h) * C),
     AT(l, (b * N + n) * R + k * kLatent)},
    {"sglang_layer_first", AT(0, (k * L + l) * B * N * H * C + ((b * N + n) * H + h) * C),
     AT(0, (l * B * N + b * N + n) * R + k * kLatent)},
    {"sglang_page_first", AT(0, k* B* N* L* H* C + (((b * N + n) * L + l) * H + h) * C),
     AT(0, ((b * N + n) * L + l) * R + k * kLatent)},
    {"sglang_page_first_direct", AT(0, k* B* N* L* H* C + (((b * L + l) * N + n) * H + h) * C),
     AT(0, ((b * L + l) * N + n) * R + k * kLatent)},
    {"sglang_page_head", AT(0, k* B* N* L* H* C + (((b * H + h) * N + n) * L + l) * C), nullptr},
    {"sglang_kv_split", nullptr, AT(k, ((b * N + n) * L + l) * (k == 0 ? kLatent : kRope))},
    {"llama_rows", AT(l * 2 + k, (b * N + n) * H * C + h * C), nullptr},
};
#undef AT

void expect_formula(const Layout& layout, Attention attention, Formula formula) {
  const Result<EngineStrides> strides =
      strides_of(layout.form(attention), shape_of(attention), layout.name);
  if (formula == nullptr) {
    ASSERT_FALSE(strides) << layout.name;
    EXPECT_EQ(strides.error().code, Code::kUnsupported);
    return;
  }
  ASSERT_TRUE(strides) << layout.name << ": " << strides.error().message;
  const std::uint64_t heads = attention == Attention::kGrouped ? H : 1;
  for (std::uint64_t k = 0; k < 2; ++k) {
    for (std::uint64_t l = 0; l < L; ++l) {
      for (std::uint64_t b = 0; b < B; ++b) {
        for (std::uint64_t h = 0; h < heads; ++h) {
          for (std::uint64_t n = 0; n < N; ++n) {
            ASSERT_EQ(place(*strides, k, l, b, h, n), formula(k, l, b, h, n)) << layout.name;
          }
        }
      }
    }
  }
}

TEST(Layouts, ArePlacedWhereTheirEnginesPlaceThem) {
  for (const Published& published : kPublished) {
    const Result<const Layout*> layout = find_layout(published.name);
    ASSERT_TRUE(layout) << published.name;
    expect_formula(**layout, Attention::kGrouped, published.grouped);
    expect_formula(**layout, Attention::kLatent, published.latent);
  }
}

TEST(Layouts, AreAllPublishedAndWellFormed) {
  std::set<std::string> published, names;
  for (const Published& row : kPublished) published.insert(row.name);
  for (const Layout& layout : layouts()) {
    EXPECT_TRUE(names.insert(layout.name).second) << layout.name << " is there twice";
    if (layout.refusal != nullptr) continue;
    EXPECT_TRUE(published.contains(layout.name)) << layout.name << " has no formula here";
    for (const Attention attention : {Attention::kGrouped, Attention::kLatent}) {
      if (layout.form(attention).order == nullptr) continue;
      EXPECT_TRUE(check_form(layout.form(attention), attention, layout.name)) << layout.name;
    }
  }
}

TEST(Layouts, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  const Result<const Layout*> layout = find_layout("vllm_bnhc_or_so_what_do_i_know");
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, Code::kInvalidArgument);
  const std::string message = layout.error().message;
  EXPECT_NE(message.find("vllm_bnhc_or_so_"), std::string::npos);
  for (const Layout& known : layouts()) {
    if (known.refusal != nullptr) continue;
    const std::string name = known.name;
    EXPECT_NE(message.find(name.substr(name.find('_') + 1)), std::string::npos) << message;
  }
  EXPECT_EQ(message.back(), ')') << "cut off: " << message;
}

TEST(Layouts, ATransposedVIsRefusedWithTheReason) {
  const Result<const Layout*> layout = find_layout("llama_transposed_v");
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, Code::kUnsupported);
  EXPECT_NE(std::string(layout.error().message).find("flash attention"), std::string::npos);
}

TEST(Layouts, AFormThatIsNoPermutationIsRefused) {
  const Form kBad[] = {{"KBNHC", ""},  {"KBNHC", "K"}, {"KBNHCL", ""}, {"KBNCH", "L"},
                       {"NHC", "KLB"}, {"KBXHC", "L"}, {"", "KLBNHC"}, {"KKBNHC", "L"},
                       {"KBNC", "LH"}, {"KLBNHCC", ""}};
  for (const Form& form : kBad) {
    const Status status = check_form(form, Attention::kGrouped, "mine");
    ASSERT_FALSE(status) << form.order << " " << form.tensors;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(status.error().message).find("mine"), std::string::npos);
  }
  EXPECT_FALSE(check_form({"BKNHC", "L"}, Attention::kLatent, "mine"));
  EXPECT_TRUE(check_form({"BKNC", "L"}, Attention::kLatent, "mine"));
}

TEST(BlockOrders, AreFoundByName) {
  for (const BlockOrder& order : block_orders()) {
    const Result<const BlockOrder*> found = find_block_order(order.name);
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, &order);
    EXPECT_EQ(std::strlen(order.grouped), 5u);
    EXPECT_EQ(std::strlen(order.latent), 4u);
  }
  EXPECT_STREQ(default_block_order().name, "layer_first");
  const Result<const BlockOrder*> none = find_block_order("random");
  ASSERT_FALSE(none);
  EXPECT_NE(std::string(none.error().message).find("layer_first, "), std::string::npos);
}

}  // namespace
}  // namespace cachalot::kv

#include "geometry/kv_geometry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cachalot::geometry {
namespace {

KvGeometry preset(const char* name, std::uint32_t block_tokens, std::uint32_t tp_rank = 0,
                  std::uint32_t tp_size = 1) {
  const Result<const ModelPreset*> model = find_preset(name);
  EXPECT_TRUE(model);
  Result<KvGeometry> g = from_preset(**model, DType::kBf16, block_tokens, tp_rank, tp_size);
  EXPECT_TRUE(g) << g.error().message;
  return g ? *g : KvGeometry{};
}

std::string error_of(const KvGeometry& g) {
  const Status status = g.check();
  EXPECT_FALSE(status);
  if (status) return "";
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  return status.error().message;
}

TEST(KvGeometry, TakesThePublishedBytesOfDeepSeekV3) {
  const auto mebibytes = [](std::uint32_t tokens) {
    return static_cast<double>(preset("DeepSeek-V3", tokens).block_bytes()) / (1 << 20);
  };
  EXPECT_NEAR(mebibytes(1'000), 67.0, 0.05);
  EXPECT_NEAR(mebibytes(16'000), 1'072, 0.5);
  EXPECT_NEAR(mebibytes(128'000), 8'578, 0.5);
}

TEST(KvGeometry, ALatentLayerOf128TokensIs128KiBAndARopePartOf16) {
  const KvGeometry g = preset("DeepSeek-V3", 128);
  EXPECT_EQ(g.block_tokens * g.content_bytes(0), 128u << 10);
  EXPECT_EQ(g.block_tokens * g.content_bytes(1), 16u << 10);
  EXPECT_EQ(g.layer_bytes(), 144u << 10);
}

TEST(KvGeometry, ABlockOfQwen3Has128PiecesOf32KiB) {
  const KvGeometry g = preset("Qwen3-32B", 16);
  EXPECT_EQ(g.layers * kParts, 128u);
  EXPECT_EQ(g.block_tokens * g.heads() * g.content_bytes(0), 32u << 10);
  EXPECT_EQ(g.block_bytes(), 4u << 20);
}

TEST(KvGeometry, ABlockOf128PiecesOf20KBIsASyntheticOne) {
  KvGeometry g;
  g.layers = 64;
  g.kv_heads = 5;
  g.head_dim = 128;
  g.block_tokens = 16;
  ASSERT_TRUE(g.check());
  EXPECT_EQ(g.block_tokens * g.heads() * g.content_bytes(1), 20'480u);
  EXPECT_EQ(g.block_bytes(), 128u * 20'480);
}

TEST(KvGeometry, HeadsAreSplitOverRanksAndReplicatedWhereThereAreMoreRanks) {
  EXPECT_EQ(preset("Qwen3-32B", 16, 3, 4).kv_heads, 2u);
  const KvGeometry replicated = preset("Qwen3-32B", 16, 3, 16);
  EXPECT_EQ(replicated.kv_heads, 1u);
  EXPECT_EQ(replicated.tp_replicas, 2u);
  EXPECT_EQ(preset("DeepSeek-V3", 16, 3, 16).block_bytes(),
            preset("DeepSeek-V3", 16).block_bytes());
}

TEST(KvGeometry, RanksThatCannotShareTheHeadsEvenlyAreRefused) {
  for (const std::uint32_t tp_size : {3u, 5u, 12u}) {
    const Result<KvGeometry> g =
        from_preset(**find_preset("Qwen3-32B"), DType::kBf16, 16, 0, tp_size);
    ASSERT_FALSE(g);
    const std::string message = g.error().message;
    EXPECT_NE(message.find("tp_size is " + std::to_string(tp_size)), std::string::npos) << message;
    EXPECT_NE(message.find("8 KV heads of Qwen3-32B"), std::string::npos) << message;
  }
  EXPECT_FALSE(from_preset(**find_preset("Qwen3-32B"), DType::kBf16, 16, 0, 0));
  EXPECT_FALSE(from_preset(**find_preset("Qwen3-32B"), DType::kBf16, 16, 4, 4));
  EXPECT_FALSE(from_preset(**find_preset("Qwen3-32B"), DType::kBf16, 0));
}

TEST(KvGeometry, FingerprintsAreEqualExactlyWhereTheBytesAre) {
  const std::string base = preset("Qwen3-32B", 16, 0, 2).fingerprint();
  EXPECT_NE(base, preset("Qwen3-32B", 16, 1, 2).fingerprint());
  EXPECT_NE(base, preset("Qwen3-32B", 16).fingerprint());
  EXPECT_NE(base, preset("Qwen3-32B", 32, 0, 2).fingerprint());
  KvGeometry other = preset("Qwen3-32B", 16, 0, 2);
  other.dtype = DType::kF16;  // as many bytes, other numbers
  EXPECT_NE(base, other.fingerprint());
  other = preset("Qwen3-32B", 16, 0, 2);
  other.pp_size = 2;
  EXPECT_NE(base, other.fingerprint());
  // Ranks 6 and 7 of 16 hold the same head of 8; so does every rank a latent.
  EXPECT_EQ(preset("Qwen3-32B", 16, 6, 16).fingerprint(),
            preset("Qwen3-32B", 16, 7, 16).fingerprint());
  EXPECT_NE(preset("Qwen3-32B", 16, 6, 16).fingerprint(),
            preset("Qwen3-32B", 16, 8, 16).fingerprint());
  EXPECT_EQ(preset("DeepSeek-V3", 16, 0, 8).fingerprint(),
            preset("DeepSeek-V3", 16, 5, 8).fingerprint());
}

TEST(KvGeometry, AHeadGroupIsWhatARankOfSoManyKeeps) {
  for (const std::uint32_t tp_size : {1u, 2u, 4u, 8u, 16u}) {
    for (std::uint32_t rank = 0; rank < tp_size; ++rank) {
      const KvGeometry g = preset("Qwen3-32B", 16, rank, tp_size);
      const Result<KvGeometry> group = g.head_group(8);
      ASSERT_TRUE(group) << group.error().message;
      EXPECT_EQ(*group, preset("Qwen3-32B", 16, rank * 8 / tp_size, 8));
      EXPECT_EQ(g.fingerprint(8), preset("Qwen3-32B", 16).fingerprint(8));
      EXPECT_EQ(g.is_first_replica(), tp_size <= 8 || rank % 2 == 0);
    }
  }
  EXPECT_EQ(preset("Qwen3-32B", 16, 1, 2).head_group(4)->kv_heads, 2u);
  EXPECT_EQ(preset("Qwen3-32B", 16, 1, 2).head_group(4)->tp_rank, 2u);
  // Two heads on each rank, each rank twice.
  KvGeometry g = preset("Qwen3-32B", 16, 0, 4);
  g.tp_rank = 6;
  g.tp_size = 8;
  g.tp_replicas = 2;
  EXPECT_EQ(g.head_group(8)->tp_rank, 6u);
  EXPECT_EQ(g.head_group(4)->tp_rank, 3u);
}

TEST(KvGeometry, ALatentIsOneGroupOnEveryRank) {
  const KvGeometry g = preset("DeepSeek-V3", 16, 5, 8);
  EXPECT_EQ(*g.head_group(1), preset("DeepSeek-V3", 16));
  EXPECT_FALSE(g.head_group(2));
  EXPECT_EQ(g.fingerprint(1), g.fingerprint());
  EXPECT_FALSE(g.is_first_replica());
  EXPECT_TRUE(preset("DeepSeek-V3", 16, 0, 8).is_first_replica());
}

TEST(KvGeometry, HeadGroupsThatDoNotFitTheHeadsAreRefused) {
  const auto message_of = [](const KvGeometry& g, std::uint32_t share_tp) -> std::string {
    const Result<KvGeometry> group = g.head_group(share_tp);
    EXPECT_FALSE(group);
    return group ? "" : group.error().message;
  };
  const KvGeometry half = preset("Qwen3-32B", 16, 0, 2);
  for (const std::uint32_t share_tp : {0u, 3u, 16u, 0xffffffffu}) {
    EXPECT_NE(
        message_of(half, share_tp)
            .find("share_tp: is " + std::to_string(share_tp) + ", expected a divisor of the 8"),
        std::string::npos);
  }
  EXPECT_NE(message_of(half, 1).find("share_tp: is 1, expected a multiple of 2"),
            std::string::npos);
  KvGeometry bad = half;
  bad.tp_replicas = 0;
  EXPECT_NE(message_of(bad, 8).find("tp_replicas"), std::string::npos);
}

TEST(KvGeometry, FingerprintsOfHeadGroupsNameTheModelAndTheirNumber) {
  EXPECT_EQ(preset("Qwen3-32B", 16, 1, 2).fingerprint(8),
            "kv1 layers=64 heads=8 head_dim=128 shard=any/8 stage=0/1 dtype=bf16 block_tokens=16");
  EXPECT_NE(preset("Qwen3-32B", 16).fingerprint(8), preset("Qwen3-32B", 16).fingerprint(4));
  EXPECT_NE(preset("Qwen3-32B", 16).fingerprint(1), preset("Qwen3-32B", 16).fingerprint());
}

TEST(KvGeometry, WrongDimensionsAreNamed) {
  const KvGeometry good = preset("Qwen3-32B", 16);
  KvGeometry g = good;
  g.layers = 0;
  EXPECT_NE(error_of(g).find("layers is 0"), std::string::npos);
  g = good;
  g.head_dim = 0;
  EXPECT_NE(error_of(g).find("head_dim is 0"), std::string::npos);
  g = good;
  g.kv_lora_rank = 512;
  EXPECT_NE(error_of(g).find("kv_lora_rank is 512, expected 0"), std::string::npos);
  g = good;
  g.dtype = static_cast<DType>(9);
  EXPECT_NE(error_of(g).find("dtype is 9"), std::string::npos);
  g = good;
  g.attention = static_cast<Attention>(7);
  EXPECT_NE(error_of(g).find("attention is 7"), std::string::npos);
  g = good;
  g.tp_replicas = 3;
  EXPECT_NE(error_of(g).find("tp_replicas is 3"), std::string::npos);
  g = preset("DeepSeek-V3", 16);
  g.kv_heads = 1;
  EXPECT_NE(error_of(g).find("kv_heads is 1, expected 0"), std::string::npos);
}

TEST(KvGeometry, SizesThatDoNotFit63BitsAreRefused) {
  KvGeometry g;
  g.layers = g.kv_heads = g.head_dim = g.block_tokens = 0xffffffffu;
  EXPECT_NE(error_of(g).find("2^63"), std::string::npos);
  g.layers = g.kv_heads = 1 << 15;
  g.head_dim = 1 << 15;
  g.block_tokens = 1 << 16;  // 4 bytes an element of K and V together: exactly 2^63
  EXPECT_NE(error_of(g).find("2^63"), std::string::npos);
  g.block_tokens -= 1;
  EXPECT_TRUE(g.check());
  EXPECT_EQ(g.block_bytes(), (std::uint64_t{1} << 63) - (std::uint64_t{1} << 47));
}

TEST(DType, HasANameAndASize) {
  const struct {
    DType dtype;
    const char* name;
    std::uint64_t bytes;
  } kAll[] = {{DType::kF32, "f32", 4},
              {DType::kF16, "F16", 2},
              {DType::kBf16, "bf16", 2},
              {DType::kF8, "f8", 1},
              {DType::kI8, "I8", 1}};
  for (const auto& known : kAll) {
    const Result<DType> parsed = parse_dtype(known.name);
    ASSERT_TRUE(parsed) << known.name;
    EXPECT_EQ(*parsed, known.dtype);
    EXPECT_EQ(dtype_bytes(*parsed), known.bytes);
    EXPECT_EQ(*parse_dtype(dtype_name(known.dtype)), known.dtype);
  }
  for (const char* name : {"", "f64", "bf1", "bf166"}) EXPECT_FALSE(parse_dtype(name)) << name;
  EXPECT_NE(std::string(parse_dtype("f64").error().message).find("f32, f16, bf16, f8, i8"),
            std::string::npos);
}

}  // namespace
}  // namespace cachalot::geometry

#include "sched/calibration/profile_folder.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/os/scratch_folder.h"

namespace cachalot::sched {
namespace {

constexpr const char* kMeta =
    "hardware: RTX4090\nmodel: meta-llama/Llama-3.1-8B\ntp_degrees: [1, 2]\n"
    "skew_fit:\n  enabled: true\n  bucket_axes:\n"
    "    n_bins: [0, 2, 100]\n    n_labels: [n<=2, n>2]\n"
    "    skew_rate_bins: [-0.01, 0.5, 1.01]\n    skew_rate_labels: [low, high]\n"
    "    kv_big_bins: [0, 1024]\n    kv_big_labels: [any]\n"
    "    kp_bins: [-1, 0, 512]\n    kp_labels: [kp=0, kp>0]\n"
    "  per_tp:\n    1:\n      alpha_default: 0.05\n    2:\n      alpha_default: 0.06\n";

class ProfileFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write("meta.yaml", kMeta);
    write("dense.csv", "layer,tokens,time_us\nqkv_proj,2,20\nqkv_proj,1,10\no_proj,1,5\n");
    write("per_sequence.csv", "layer,sequences,time_us\nlm_head,1,100\n");
    write("attention.csv",
          "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,9.5\n16,0,1,16,12\n");
    write("skew_fit.csv",
          "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n"
          "0,n<=2,low,any,kp=0,-0.1,4\n");
  }
  void write(const std::string& name, const std::string& text) {
    folder_.write("gpu-model-tp2/" + name, text);
  }
  Result<ProfileTables> read() { return read_profile_folder(folder_.path("gpu-model-tp2")); }

  os::ScratchFolder folder_;
};

TEST_F(ProfileFolderTest, IsReadWhole) {
  const Result<ProfileTables> tables = read();
  ASSERT_TRUE(tables.ok()) << tables.error().message;
  EXPECT_EQ(tables->hardware, "RTX4090");
  EXPECT_EQ(tables->model, "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(tables->tensor_parallel, 2u);
  EXPECT_EQ(tables->dense.at("qkv_proj"), (Curve{{1, 10}, {2, 20}}));
  EXPECT_EQ(tables->per_sequence.at("lm_head"), (Curve{{1, 100}}));
  ASSERT_EQ(tables->attention.size(), 2u);
  EXPECT_DOUBLE_EQ(tables->attention[1].us, 12);
  ASSERT_TRUE(tables->has_skew);
  EXPECT_DOUBLE_EQ(tables->skew.alpha_default, 0.06);
  EXPECT_DOUBLE_EQ(tables->skew.alpha.at({0, "n<=2", "low", "any", "kp=0"}), -0.1);
  EXPECT_EQ(tables->skew.sequences.label_of(2), "n<=2");
  EXPECT_EQ(tables->skew.sequences.label_of(500), "n>2");
}

TEST_F(ProfileFolderTest, WithoutMeasuredSkewThereIsNone) {
  write("meta.yaml", "hardware: G\nmodel: M\ntp_degrees: [2]\nskew_fit:\n  enabled: false\n");
  const Result<ProfileTables> tables = read();
  ASSERT_TRUE(tables.ok()) << tables.error().message;
  EXPECT_FALSE(tables->has_skew);
}

TEST_F(ProfileFolderTest, WhatIsWrongIsOneError) {
  const auto problem = [this] {
    const Result<ProfileTables> tables = read();
    return tables ? std::string("none") : std::string(tables.error().message);
  };
  write("dense.csv", "layer,tokens,time_us\nqkv_proj,1,-10\n");
  EXPECT_NE(problem().find("dense.csv:2: time_us is -10"), std::string::npos) << problem();
  write("dense.csv", "layer,tokens,time_us\nqkv_proj,1,10\nqkv_proj,1,11\n");
  EXPECT_NE(problem().find("two times for 1 tokens"), std::string::npos) << problem();
  write("meta.yaml", "hardware: G\nmodel: M\ntp_degrees: [4]\n");
  EXPECT_NE(problem().find("no degree 2 in tp_degrees"), std::string::npos) << problem();
  write("meta.yaml", "model: M\ntp_degrees: [2]\n");
  EXPECT_NE(problem().find("no hardware"), std::string::npos) << problem();
}

TEST_F(ProfileFolderTest, AFolderWithoutADegreeInItsNameIsRefused) {
  folder_.write("profile/meta.yaml", kMeta);
  const Result<ProfileTables> tables = read_profile_folder(folder_.path("profile"));
  ASSERT_FALSE(tables.ok());
  EXPECT_NE(std::string(tables.error().message).find("does not end in -tpN"), std::string::npos);
  EXPECT_FALSE(read_profile_folder(folder_.path("none-tp1")).ok());
}

}  // namespace
}  // namespace cachalot::sched

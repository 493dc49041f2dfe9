#include "identity.h"

#include <ggml-backend.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace cachalot::llama {
namespace {

class Files : public testing::Test {
 protected:
  Files()
      : folder_(std::filesystem::temp_directory_path() /
                ("cachalot_identity." + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
    return folder_ / name;
  }
  std::filesystem::path folder_;
};

std::string digest(const std::vector<std::string>& files) {
  const auto result = digest_of_files(files);
  return result ? *result : result.error().message;
}

TEST_F(Files, AreToldApartByContentAndByWhereOneEnds) {
  const std::string ab = write("ab", "ab"), c = write("c", "c"), a = write("a", "a"),
                    bc = write("bc", "bc");
  EXPECT_EQ(digest({ab}).size(), 64u);
  EXPECT_EQ(digest({ab, c}), digest({write("other name", "ab"), c}));
  EXPECT_NE(digest({ab, c}), digest({a, bc}));
  EXPECT_NE(digest({ab, c}), digest({c, ab}));
  EXPECT_NE(digest({ab}), digest({ab, write("empty", "")}));
}

TEST_F(Files, ThatAreNotThereAreNamed) {
  const std::string missing = folder_ / "missing";
  const auto result = digest_of_files({&missing, 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::kNotFound);
  EXPECT_NE(std::string(result.error().message).find("missing"), std::string::npos);
  const std::string folder = folder_;
  EXPECT_FALSE(digest_of_files({&folder, 1}));
}

// What a process says of itself, each changed alone: made-up devices and adapters, a real context.
class Fingerprint : public Files {
 protected:
  using Change = std::function<void(Origin&)>;

  Fingerprint() {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    model_.reset(llama_model_load_from_file(kModel, llama_model_default_params()));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    context_.reset(llama_init_from_model(model_.get(), params));
    EXPECT_TRUE(context_);
  }
  std::string of(const Change& change = {}, const std::vector<std::string>& devices = {},
                 const std::string& layout = "1 layers", std::uint32_t block_tokens = 64) const {
    Origin origin;
    origin.model_files = {kModel};
    origin.model_digest = "made up";
    if (change) change(origin);
    const auto text = fingerprint_of(context_.get(), origin, devices, layout, block_tokens);
    EXPECT_TRUE(text) << text.error().message;
    return text ? *text : "";
  }
  // All different from each other, and each the same again.
  void expect_told_apart(const std::vector<Change>& changes,
                         const std::vector<std::string>& devices = {}) const {
    std::set<std::string> texts = {of({}, devices)};
    for (const Change& change : changes) {
      EXPECT_EQ(of(change, devices), of(change, devices));
      texts.insert(of(change, devices));
    }
    EXPECT_EQ(texts.size(), changes.size() + 1);
  }

  static constexpr const char* kModel = CACHALOT_TEST_ASSETS "/models/stories260K.gguf";
  struct Free {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
  };
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
};

TEST_F(Fingerprint, ChangesWithAdaptersTheirStrengthsAndTheirOrder) {
  const std::string one = write("one.gguf", "one"), two = write("two.gguf", "two");
  expect_told_apart({
      [&](Origin& origin) { origin.loras = {{one}}; },
      [&](Origin& origin) { origin.loras = {{two}}; },
      [&](Origin& origin) {
        origin.loras = {{one, 0.5F}};
      },
      [&](Origin& origin) {
        origin.loras = {{one, 0.50000006F}};
      },
      [&](Origin& origin) {
        origin.loras = {{one, 0.0F}};
      },
      [&](Origin& origin) {
        origin.loras = {{one}, {two}};
      },
      [&](Origin& origin) {
        origin.loras = {{two}, {one}};
      },
      [&](Origin& origin) {
        origin.loras = {{one}, {one}};
      },
      [&](Origin& origin) { origin.control_vectors = {{one}}; },
      [&](Origin& origin) {
        origin.control_vectors = {{one, 0.5F}};
      },
      [&](Origin& origin) { origin.loras = {{one}}, origin.control_vectors = {{two}}; },
  });
  // By their content, wherever they lie.
  const std::string copy = write("copy.gguf", "one");
  EXPECT_EQ(of([&](Origin& origin) { origin.loras = {{one}}; }),
            of([&](Origin& origin) { origin.loras = {{copy}}; }));
}

TEST_F(Fingerprint, IsNoneWithoutItsAdapters) {
  Origin origin;
  origin.model_files = {kModel};
  origin.loras = {{folder_ / "missing.gguf"}};
  const auto text = fingerprint_of(context_.get(), origin, {}, "", 64);
  ASSERT_FALSE(text);
  EXPECT_NE(std::string(text.error().message).find("missing.gguf"), std::string::npos);
}

// The weights in memory are those of the former file.
TEST_F(Fingerprint, IsNoneIfAnotherFileIsWhereItsModelWas) {
  Origin origin;
  origin.model_files = {write("model.gguf", "one"), write("second.gguf", "two")};
  origin.model_marks = marks_of_files(origin.model_files);
  ASSERT_NE(origin.model_marks, "");
  EXPECT_TRUE(fingerprint_of(context_.get(), origin, {}, "", 64));
  std::filesystem::rename(write("update", "six"), origin.model_files[1]);
  const auto text = fingerprint_of(context_.get(), origin, {}, "", 64);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kStale);
  EXPECT_NE(std::string(text.error().message).find("model.gguf: another file"), std::string::npos);
  EXPECT_FALSE(digest_of_model(origin));
  origin.model_marks = marks_of_files({});
  EXPECT_TRUE(digest_of_model(origin));  // nothing to compare with
  const std::string missing = folder_ / "missing.gguf";
  EXPECT_EQ(marks_of_files({&missing, 1}), "");
}

TEST_F(Fingerprint, ChangesWithDevicesAndWhatTheyCompute) {
  const std::vector<std::string> device = {"GPU0 of a kind"};
  EXPECT_NE(of(), of({}, device));
  EXPECT_NE(of({}, device), of({}, {"GPU0 of another"}));
  EXPECT_NE(of({}, device), of({}, {"GPU0 of a kind", "GPU1 of a kind"}));
  EXPECT_NE(of({}, {"a", "b"}), of({}, {"b", "a"}));
  const std::vector<float> split(llama_max_devices(), 0.5F), other(llama_max_devices(), 0.25F);
  expect_told_apart(
      {
          [](Origin& origin) { origin.model.n_gpu_layers = 0; },
          [](Origin& origin) { origin.model.n_gpu_layers = 7; },
          [](Origin& origin) { origin.model.split_mode = LLAMA_SPLIT_MODE_ROW; },
          [](Origin& origin) { origin.model.main_gpu = 1; },
          [&](Origin& origin) { origin.model.tensor_split = split.data(); },
          [&](Origin& origin) { origin.model.tensor_split = other.data(); },
          [](Origin& origin) { origin.model.no_host = !origin.model.no_host; },
          [](Origin& origin) { origin.context.offload_kqv = !origin.context.offload_kqv; },
          [](Origin& origin) { origin.context.op_offload = !origin.context.op_offload; },
      },
      device);
  // Where there is none, nothing can be given to it.
  EXPECT_EQ(of(), of([](Origin& origin) { origin.model.n_gpu_layers = 7; }));
  EXPECT_NE(of(), of([](Origin& origin) {
              origin.model.use_extra_bufts = !origin.model.use_extra_bufts;
            }));
}

TEST_F(Fingerprint, ChangesWithOverriddenMetadata) {
  const auto integer = [](const char* key, std::int64_t value) {
    llama_model_kv_override override{};
    override.tag = LLAMA_KV_OVERRIDE_TYPE_INT;
    std::snprintf(override.key, sizeof override.key, "%s", key);
    override.val_i64 = value;
    return override;
  };
  const llama_model_kv_override end{};
  const std::vector<llama_model_kv_override> one = {integer("a", 1), end},
                                             two = {integer("a", 2), end},
                                             other = {integer("b", 1), end};
  const llama_model_tensor_buft_override buffers[] = {{"blk.0", ggml_backend_cpu_buffer_type()},
                                                      {}};
  expect_told_apart({
      [&](Origin& origin) { origin.model.kv_overrides = one.data(); },
      [&](Origin& origin) { origin.model.kv_overrides = two.data(); },
      [&](Origin& origin) { origin.model.kv_overrides = other.data(); },
      [&](Origin& origin) { origin.model.tensor_buft_overrides = buffers; },
  });
}

// Models with two sets of RoPE factors choose by this length; what the file says does not count then.
TEST_F(Fingerprint, TellsLongContextsByTheOverriddenLength) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  const std::unique_ptr<llama_context, Free> longer(llama_init_from_model(model_.get(), params));
  ASSERT_TRUE(longer);
  Origin origin;
  origin.model_files = {kModel};
  origin.model_digest = "made up";
  const auto differs = [&] {
    const auto shorter_text = fingerprint_of(context_.get(), origin, {}, "", 64);
    const auto longer_text = fingerprint_of(longer.get(), origin, {}, "", 64);
    return shorter_text && longer_text && *shorter_text != *longer_text;
  };
  for (const std::int64_t trained : {64, 256, 300, 512, 4096}) {
    llama_model_kv_override overrides[2] = {};
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
    std::snprintf(overrides[0].key, sizeof overrides[0].key,
                  "llama.rope.scaling.original_context_length");
    overrides[0].val_i64 = trained;
    origin.model.kv_overrides = overrides;
    EXPECT_EQ(differs(), trained >= 256 && trained < 512) << trained;
  }
}

TEST_F(Fingerprint, ChangesWithTheContextAndTheShapeOfBlocks) {
  expect_told_apart({
      [](Origin& origin) { origin.model_digest = "another"; },
      [](Origin& origin) { origin.context.type_k = GGML_TYPE_Q8_0; },
      [](Origin& origin) { origin.context.type_v = GGML_TYPE_Q8_0; },
      [](Origin& origin) { origin.context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED; },
      [](Origin& origin) { origin.context.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL; },
      [](Origin& origin) { origin.context.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN; },
      [](Origin& origin) { origin.context.rope_freq_base = 10000.5F; },
      [](Origin& origin) { origin.context.rope_freq_scale = 0.5F; },
      [](Origin& origin) { origin.context.yarn_ext_factor = 0.5F; },
      [](Origin& origin) { origin.context.yarn_attn_factor = 0.5F; },
      [](Origin& origin) { origin.context.yarn_beta_fast = 0.5F; },
      [](Origin& origin) { origin.context.yarn_beta_slow = 0.5F; },
      [](Origin& origin) { origin.context.yarn_orig_ctx = 128; },
      [](Origin& origin) { origin.salt = "a"; },
      [](Origin& origin) { origin.salt = "a\n"; },
  });
  EXPECT_NE(of(), of({}, {}, "2 layers"));
  EXPECT_NE(of(), of({}, {}, "1 layers", 128));
}

TEST_F(Fingerprint, ChangesWithVariablesThatPickKernels) {
  const std::string before = of();
  for (const char* name :
       {"LLAMA_ATTN_ROT_DISABLE", "GGML_OP_OFFLOAD_MIN_BATCH", "GGML_OPENCL_Q8_DENSE_DP4A"}) {
    ASSERT_EQ(setenv(name, "1", 1), 0);
    EXPECT_NE(of(), before) << name;
    ASSERT_EQ(unsetenv(name), 0);
    EXPECT_EQ(of(), before);
  }
}

TEST(Devices, OfThisMachineAreThoseBesideItsCores) {
  llama_model_params params = llama_model_default_params();
  ggml_backend_dev_t none = nullptr;
  params.devices = &none;
  EXPECT_TRUE(devices_of(params).empty());
}

TEST(SplitModels, HaveAllTheirFilesAndOthersOne) {
  const std::vector<std::string> all = {"/m/x-00001-of-00003.gguf", "/m/x-00002-of-00003.gguf",
                                        "/m/x-00003-of-00003.gguf"};
  EXPECT_EQ(split_model_files(all[0]), all);
  for (const char* one :
       {"/m/x.gguf", "/m/x-00002-of-00003.gguf", "/m/x-of-1.gguf", "x-00001-of-00000.gguf", ""}) {
    EXPECT_EQ(split_model_files(one), std::vector<std::string>{one});
  }
}

}  // namespace
}  // namespace cachalot::llama

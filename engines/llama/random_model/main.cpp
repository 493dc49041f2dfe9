// `cachalot-llama-random-model FILE`: makes a model to try things with, where none is at hand.

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <string>

#include "../whole_number.h"
#include "model_file.h"

namespace cachalot::llama {
namespace {

struct WeightType {
  const char* name;
  ggml_type type;
};
constexpr std::array kWeightTypes = {
    WeightType{"f32", GGML_TYPE_F32}, WeightType{"f16", GGML_TYPE_F16},
    WeightType{"bf16", GGML_TYPE_BF16}, WeightType{"q8_0", GGML_TYPE_Q8_0},
    WeightType{"q4_0", GGML_TYPE_Q4_0}};

// One of `table`, by its name.
template <class Table>
auto find(const Table& table, const char* flag, const std::string& name)
    -> Result<std::decay_t<decltype(*std::begin(table))>> {
  std::string known;
  for (const auto& row : table) {
    if (name == row.name) return row;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  return Error::make(Code::kInvalidArgument, "%s is \"%.60s\", expected one of: %s", flag,
                     name.c_str(), known.c_str());
}

struct Options {
  std::string path, size = "tiny", type = "f16";
  std::uint64_t seed = 1;
};

Status make_model(const Options& options) {
  CACHALOT_TRY_ASSIGN(const RandomModelShape shape,
                      find(kRandomModelShapes, "--size", options.size));
  CACHALOT_TRY_ASSIGN(const WeightType type, find(kWeightTypes, "--type", options.type));
  CACHALOT_TRY(write_random_model(options.path, shape, type.type, options.seed));
  std::printf("wrote %s: %.1f M parameters in %s, %llu bytes of KV cache a token in f16\n",
              options.path.c_str(), static_cast<double>(shape.parameters()) / 1e6, type.name,
              static_cast<unsigned long long>(shape.kv_bytes_per_token()));
  return {};
}

int exit_code(Code code) {
  return code == Code::kInvalidArgument || code == Code::kNotFound ? 2 : 3;
}

int run(int argc, char** argv) {
  CLI::App app("Writes a Llama model with random weights as a GGUF file.",
               "cachalot-llama-random-model");
  Options options;
  app.add_option("file", options.path, "the file to write")->required()->type_name("FILE");
  app.add_option("--size", options.size, "tiny: 3.4 M parameters; 125m: 124.7 M")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--type", options.type, "type of the weights: f32, f16, bf16, q8_0 or q4_0")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "the same seed gives the same file, on any machine")
      ->type_name("N")
      ->transform(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  app.footer(
      "Example: cachalot-llama-random-model random.gguf --size 125m --type f16\n"
      "Exit code: 0 done; 2 bad usage; 3 the file cannot be written");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "cachalot-llama-random-model: %s (see --help)\n", error.what());
    return 2;
  }
  const Status status = make_model(options);
  if (status) return 0;
  std::fprintf(stderr, "cachalot-llama-random-model: %s\n", status.error().message);
  return exit_code(status.error().code);
}

}  // namespace
}  // namespace cachalot::llama

int main(int argc, char** argv) {
  try {
    return cachalot::llama::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cachalot-llama-random-model: %s\n", error.what());
    return 3;
  }
}

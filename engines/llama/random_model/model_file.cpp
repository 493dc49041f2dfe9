#include "model_file.h"

#include <gguf.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "vocabulary.h"
#include "weights.h"

namespace cachalot::llama {
namespace {

constexpr std::uint32_t kContextTokens = 32768;
constexpr float kRopeBase = 500000.0F;
constexpr float kNormEpsilon = 1e-5F;

// Turns between <|im_start|>ROLE and <|im_end|>.
constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

struct Tensor {
  std::string name;
  std::int64_t columns = 0, rows = 0;  // rows 0: a vector of ones
};

std::vector<Tensor> tensors_of(const RandomModelShape& shape) {
  const std::int64_t hidden = shape.hidden;
  const std::int64_t kv = std::int64_t{shape.kv_heads} * shape.head_dim();
  std::vector<Tensor> tensors = {{"token_embd.weight", hidden, shape.vocabulary},
                                 {"output_norm.weight", hidden, 0},
                                 {"output.weight", hidden, shape.vocabulary}};
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const Tensor of_layer[] = {
        {"attn_norm.weight", hidden, 0},        {"attn_q.weight", hidden, hidden},
        {"attn_k.weight", hidden, kv},          {"attn_v.weight", hidden, kv},
        {"attn_output.weight", hidden, hidden}, {"ffn_norm.weight", hidden, 0},
        {"ffn_gate.weight", hidden, shape.ffn}, {"ffn_up.weight", hidden, shape.ffn},
        {"ffn_down.weight", shape.ffn, hidden},
    };
    for (const Tensor& tensor : of_layer) {
      tensors.push_back({prefix + tensor.name, tensor.columns, tensor.rows});
    }
  }
  return tensors;
}

struct FreeGguf {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
using Gguf = std::unique_ptr<gguf_context, FreeGguf>;

struct FreeGgml {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using Ggml = std::unique_ptr<ggml_context, FreeGgml>;

void set_shape(gguf_context* gguf, const RandomModelShape& shape, std::uint64_t seed) {
  const std::string name = std::string("random ") + shape.name + ", seed " + std::to_string(seed);
  gguf_set_val_str(gguf, "general.architecture", "llama");
  gguf_set_val_str(gguf, "general.name", name.c_str());
  gguf_set_val_u32(gguf, "llama.vocab_size", shape.vocabulary);
  gguf_set_val_u32(gguf, "llama.context_length", kContextTokens);
  gguf_set_val_u32(gguf, "llama.embedding_length", shape.hidden);
  gguf_set_val_u32(gguf, "llama.block_count", shape.layers);
  gguf_set_val_u32(gguf, "llama.feed_forward_length", shape.ffn);
  gguf_set_val_u32(gguf, "llama.attention.head_count", shape.heads);
  gguf_set_val_u32(gguf, "llama.attention.head_count_kv", shape.kv_heads);
  gguf_set_val_u32(gguf, "llama.rope.dimension_count", shape.head_dim());
  gguf_set_val_f32(gguf, "llama.rope.freq_base", kRopeBase);
  gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", kNormEpsilon);
}

void set_vocabulary(gguf_context* gguf, std::uint32_t tokens) {
  const RandomVocabulary vocabulary = RandomVocabulary::make(tokens);
  std::vector<const char*> texts;
  for (const std::string& text : vocabulary.texts) texts.push_back(text.c_str());
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, vocabulary.scores.data(),
                    vocabulary.scores.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocabulary.kinds.data(),
                    vocabulary.kinds.size());
  gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", RandomVocabulary::kUnknown);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", RandomVocabulary::kBegin);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", RandomVocabulary::kEnd);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eot_token_id", RandomVocabulary::kTurnEnd);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_space_prefix", false);
  gguf_set_val_str(gguf, "tokenizer.chat_template", kChatTemplate);
}

ggml_type stored_type(const Tensor& tensor, ggml_type type) {
  return tensor.rows == 0 ? GGML_TYPE_F32 : type;
}

void add_tensors(gguf_context* gguf, const std::vector<Tensor>& tensors, ggml_type type) {
  const Ggml context(ggml_init({.mem_size = ggml_tensor_overhead() * (tensors.size() + 1),
                                .mem_buffer = nullptr,
                                .no_alloc = true}));
  for (const Tensor& tensor : tensors) {
    ggml_tensor* const declared =
        tensor.rows == 0 ? ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, tensor.columns)
                         : ggml_new_tensor_2d(context.get(), type, tensor.columns, tensor.rows);
    ggml_set_name(declared, tensor.name.c_str());
    gguf_add_tensor(gguf, declared);
  }
}

// The bytes of a tensor as the file has them, with the padding behind.
std::vector<std::uint8_t> bytes_of(const Tensor& tensor, ggml_type type, std::uint64_t seed,
                                   std::size_t alignment) {
  const std::int64_t rows = tensor.rows == 0 ? 1 : tensor.rows;
  std::vector<float> weights(static_cast<std::size_t>(tensor.columns * rows), 1.0F);
  if (tensor.rows != 0) {
    // What goes in comes out about as large, whatever the width; embeddings are as large as that.
    const bool is_embedding = tensor.name == "token_embd.weight";
    const float deviation =
        is_embedding ? 1.0F : 1.0F / std::sqrt(static_cast<float>(tensor.columns));
    fill_random(weights, seed, tensor.name, deviation);
  }
  const ggml_type stored = stored_type(tensor, type);
  const std::size_t bytes = ggml_row_size(stored, tensor.columns) * static_cast<std::size_t>(rows);
  std::vector<std::uint8_t> out((bytes + alignment - 1) / alignment * alignment);
  ggml_quantize_chunk(stored, weights.data(), out.data(), 0, rows, tensor.columns, nullptr);
  return out;
}

Status write_error(const std::string& path) {
  return Error::from_errno(errno == 0 ? EIO : errno, "%.150s: writing", path.c_str());
}

Status write_tensors(const std::string& path, const std::vector<Tensor>& tensors, ggml_type type,
                     std::uint64_t seed, std::size_t alignment) {
  std::FILE* const file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) return write_error(path);
  bool is_written = true;
  for (const Tensor& tensor : tensors) {
    const std::vector<std::uint8_t> bytes = bytes_of(tensor, type, seed, alignment);
    is_written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if (!is_written) break;
  }
  const Status status = is_written ? Status() : write_error(path);
  if (std::fclose(file) != 0 && status) return write_error(path);
  return status;
}

Status write_file(const std::string& path, const RandomModelShape& shape, ggml_type type,
                  std::uint64_t seed) {
  const Gguf gguf(gguf_init_empty());
  const std::vector<Tensor> tensors = tensors_of(shape);
  set_shape(gguf.get(), shape, seed);
  set_vocabulary(gguf.get(), shape.vocabulary);
  add_tensors(gguf.get(), tensors, type);
  // Opened here first, since the library reports failures without their reason.
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return write_error(path);
  const bool is_written = gguf_write_to_file_ptr(gguf.get(), file, /*only_meta=*/true);
  const Status status = is_written ? Status() : write_error(path);
  if (std::fclose(file) != 0 && status) return write_error(path);
  CACHALOT_TRY(status);
  return write_tensors(path, tensors, type, seed, gguf_get_alignment(gguf.get()));
}

}  // namespace

std::uint64_t RandomModelShape::parameters() const {
  std::uint64_t count = 0;
  for (const Tensor& tensor : tensors_of(*this)) {
    count += static_cast<std::uint64_t>(tensor.columns) *
             static_cast<std::uint64_t>(tensor.rows == 0 ? 1 : tensor.rows);
  }
  return count;
}

std::uint64_t RandomModelShape::kv_bytes_per_token() const {
  return std::uint64_t{2} * 2 * layers * kv_heads * head_dim();
}

Status write_random_model(const std::string& path, const RandomModelShape& shape, ggml_type type,
                          std::uint64_t seed) {
  const std::string partial = path + ".partial." + std::to_string(getpid());
  Status status = write_file(partial, shape, type, seed);
  if (status && std::rename(partial.c_str(), path.c_str()) != 0) {
    status = Error::from_errno(errno, "%.150s: renaming %.60s", path.c_str(), partial.c_str());
  }
  if (!status) unlink(partial.c_str());
  return status;
}

}  // namespace cachalot::llama

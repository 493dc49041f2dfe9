#include "identity.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <ggml-backend.h>
#include <link.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "os/file_descriptor.h"

extern char** environ;  // NOLINT: POSIX has it in no header

namespace cachalot::llama {
namespace {

// Changes when blocks of the same origin come to have other bytes.
constexpr const char* kVersion = "cachalot-llama-1";

using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

Status add_file(EVP_MD_CTX* digest, const std::string& path) {
  const os::FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Error::from_errno(errno, "%s", path.c_str());
  (void)posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<unsigned char> buffer(std::size_t{1} << 20);
  std::uint64_t total = 0;
  for (;;) {
    const ssize_t got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Error::from_errno(errno, "%s: byte %llu", path.c_str(),
                               static_cast<unsigned long long>(total));
    if (got == 0) break;
    EVP_DigestUpdate(digest, buffer.data(), static_cast<std::size_t>(got));
    total += static_cast<std::uint64_t>(got);
  }
  // Where one file ends and the next begins is content, too.
  EVP_DigestUpdate(digest, &total, sizeof total);
  return {};
}

Result<DigestContext> begin_digest() {
  DigestContext digest(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (digest && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1) return digest;
  return Error::make(Code::kUnsupported, "libcrypto has no SHA-256");
}

std::string hex_of(EVP_MD_CTX* digest) {
  unsigned char bytes[32];
  EVP_DigestFinal_ex(digest, bytes, nullptr);
  std::string text;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

// One "name=value" a line; a value may be anything, so its length stands before it.
class Text {
 public:
  void add(const char* name, const std::string& value) {
    text_ += name + ("=" + std::to_string(value.size())) + ":" + value + "\n";
  }
  void add(const char* name, long long value) { add(name, std::to_string(value)); }
  // To the last bit.
  void add_float(const char* name, double value) {
    char text[48];
    std::snprintf(text, sizeof text, "%a", value);
    add(name, std::string(text));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

bool is_of_llama(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  const char* const name = slash == nullptr ? path : slash + 1;
  return std::strncmp(name, "libllama.", 9) == 0 || std::strncmp(name, "libggml", 7) == 0;
}

// The files of the code that computes. Where libllama is linked statically, the one that it is in.
std::vector<std::string> library_files() {
  std::vector<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        if (is_of_llama(info->dlpi_name))
          static_cast<std::vector<std::string>*>(to)->emplace_back(info->dlpi_name);
        return 0;
      },
      &files);
  // By name: the preload library is also loaded where there is no libllama.
  Dl_info where{};
  const void* const code = dlsym(RTLD_DEFAULT, "llama_state_seq_set_data_ext");
  const bool is_known = code != nullptr && dladdr(code, &where) != 0 && where.dli_fname != nullptr;
  if (!is_known || !is_of_llama(where.dli_fname)) files.emplace_back("/proc/self/exe");
  // By name, not by place or order of loading: the same build installed twice is the same.
  std::sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
    return a.substr(a.rfind('/') + 1) < b.substr(b.rfind('/') + 1);
  });
  return files;
}

// Variables by which ggml picks kernels, of any backend, and llama.cpp the form of the cache.
std::vector<std::string> kernel_variables() {
  constexpr const char* kPrefixes[] = {"GGML_", "LLAMA_ATTN_"};
  std::vector<std::string> found;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    for (const char* prefix : kPrefixes) {
      if (std::strncmp(*at, prefix, std::strlen(prefix)) == 0) found.emplace_back(*at);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void add_overrides(Text& text, const llama_model_params& model) {
  for (const llama_model_kv_override* at = model.kv_overrides; at != nullptr && at->key[0] != 0;
       ++at) {
    text.add("override", std::string(at->key));
    text.add("override_type", at->tag);
    switch (at->tag) {
      case LLAMA_KV_OVERRIDE_TYPE_INT:
        text.add("override_value", at->val_i64);
        break;
      case LLAMA_KV_OVERRIDE_TYPE_FLOAT:
        text.add_float("override_value", at->val_f64);
        break;
      case LLAMA_KV_OVERRIDE_TYPE_BOOL:
        text.add("override_value", at->val_bool);
        break;
      case LLAMA_KV_OVERRIDE_TYPE_STR:
        text.add("override_value",
                 std::string(at->val_str, strnlen(at->val_str, sizeof at->val_str)));
        break;
    }
  }
  for (const llama_model_tensor_buft_override* at = model.tensor_buft_overrides;
       at != nullptr && at->pattern != nullptr; ++at) {
    text.add("buffer_of", std::string(at->pattern) + "=" +
                              (at->buft == nullptr ? "" : ggml_backend_buft_name(at->buft)));
  }
}

// Without any device, the assignment of layers does not matter.
void add_devices(Text& text, const Origin& origin, std::span<const std::string> devices) {
  const llama_model_params& model = origin.model;
  text.add("extra_buffers", model.use_extra_bufts);
  if (devices.empty()) return;
  for (const std::string& device : devices) text.add("device", device);
  text.add("gpu_layers", model.n_gpu_layers);
  text.add("split_mode", model.split_mode);
  text.add("main_gpu", model.main_gpu);
  for (std::size_t i = 0; model.tensor_split != nullptr && i < llama_max_devices(); ++i) {
    text.add_float("tensor_split", model.tensor_split[i]);
  }
  text.add("no_host", model.no_host);
  text.add("offload_kqv", origin.context.offload_kqv);
  text.add("op_offload", origin.context.op_offload);
}

// Some models take other RoPE factors where a context is longer than they were first trained for. The file says for how
// many tokens, unless that was overridden.
bool is_long_context(const llama_context* context, const llama_model_params& params) {
  const llama_model* const model = llama_get_model(context);
  char architecture[64] = {}, length[32] = {};
  std::uint64_t trained = static_cast<std::uint64_t>(std::max(0, llama_model_n_ctx_train(model)));
  if (llama_model_meta_val_str(model, "general.architecture", architecture, sizeof architecture) >
      0) {
    const std::string key = std::string(architecture) + ".rope.scaling.original_context_length";
    if (llama_model_meta_val_str(model, key.c_str(), length, sizeof length) > 0) {
      trained = std::strtoull(length, nullptr, 10);
    }
    for (const llama_model_kv_override* at = params.kv_overrides; at != nullptr && at->key[0] != 0;
         ++at) {
      if (key != at->key) continue;  // the first one of a key counts
      if (at->tag == LLAMA_KV_OVERRIDE_TYPE_INT) trained = static_cast<std::uint32_t>(at->val_i64);
      break;
    }
  }
  return llama_n_ctx_seq(context) > trained;
}

void add_context(Text& text, const llama_context* context, const Origin& origin) {
  const llama_context_params& params = origin.context;
  text.add("attention_type", params.attention_type);
  text.add("rope_scaling_type", params.rope_scaling_type);
  text.add_float("rope_freq_base", params.rope_freq_base);
  text.add_float("rope_freq_scale", params.rope_freq_scale);
  text.add_float("yarn_ext_factor", params.yarn_ext_factor);
  text.add_float("yarn_attn_factor", params.yarn_attn_factor);
  text.add_float("yarn_beta_fast", params.yarn_beta_fast);
  text.add_float("yarn_beta_slow", params.yarn_beta_slow);
  text.add("yarn_orig_ctx", params.yarn_orig_ctx);
  text.add("flash_attention", params.flash_attn_type);
  text.add("type_k", params.type_k);
  text.add("type_v", params.type_v);
  text.add("long_context", is_long_context(context, origin.model));
}

Status add_adapters(Text& text, const char* name, std::span<const Adapter> adapters) {
  for (const Adapter& adapter : adapters) {
    CACHALOT_TRY_ASSIGN(const std::string digest, digest_of_files({&adapter.file, 1}));
    text.add(name, digest);
    text.add_float("scale", adapter.scale);
  }
  return {};
}

}  // namespace

std::vector<std::string> split_model_files(const std::string& path) {
  // llama.cpp names them NAME-00001-of-00003.gguf and is asked how; the first one gives the name.
  const std::size_t of = path.rfind("-of-");
  int parts = 0;
  if (of == std::string::npos || std::sscanf(path.c_str() + of, "-of-%5d.gguf", &parts) != 1 ||
      parts < 1)
    return {path};
  std::vector<char> prefix(path.size() + 1), name(path.size() + 32);
  if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, parts) <= 0) return {path};
  std::vector<std::string> files;
  for (int part = 0; part < parts; ++part) {
    if (llama_split_path(name.data(), name.size(), prefix.data(), part, parts) <= 0) return {path};
    files.emplace_back(name.data());
  }
  return files;
}

Result<std::string> digest_of_files(std::span<const std::string> files) {
  CACHALOT_TRY_ASSIGN(const DigestContext digest, begin_digest());
  for (const std::string& path : files) CACHALOT_TRY(add_file(digest.get(), path));
  return hex_of(digest.get());
}

std::string marks_of_files(std::span<const std::string> files) {
  std::string marks;
  for (const std::string& path : files) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) return {};
    for (const long long number :
         {static_cast<long long>(status.st_dev), static_cast<long long>(status.st_ino),
          static_cast<long long>(status.st_size), static_cast<long long>(status.st_mtim.tv_sec),
          static_cast<long long>(status.st_mtim.tv_nsec)}) {
      marks += std::to_string(number) + " ";
    }
  }
  return marks;
}

Result<std::string> digest_of_model(const Origin& origin) {
  CACHALOT_TRY_ASSIGN(std::string digest, digest_of_files(origin.model_files));
  // Afterwards, so that the files that were read are those that were loaded.
  if (origin.model_marks.empty() || marks_of_files(origin.model_files) == origin.model_marks)
    return digest;
  return Error::make(
      Code::kStale,
      "%.150s: another file is there than the model was loaded from; expected the same one",
      origin.model_files.front().c_str());
}

Result<std::string> digest_of_text(std::string_view text) {
  CACHALOT_TRY_ASSIGN(const DigestContext digest, begin_digest());
  EVP_DigestUpdate(digest.get(), text.data(), text.size());
  return hex_of(digest.get());
}

std::vector<std::string> devices_of(const llama_model_params& model) {
  std::vector<ggml_backend_dev_t> devices;
  for (ggml_backend_dev_t* at = model.devices; at != nullptr && *at != nullptr; ++at)
    devices.push_back(*at);
  for (std::size_t i = 0; model.devices == nullptr && i < ggml_backend_dev_count(); ++i) {
    devices.push_back(ggml_backend_dev_get(i));
  }
  std::vector<std::string> texts;
  for (ggml_backend_dev_t device : devices) {
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) continue;
    texts.push_back(std::string(ggml_backend_dev_name(device)) + " " +
                    ggml_backend_dev_description(device));
  }
  return texts;
}

Result<std::string> fingerprint_of(const llama_context* context, const Origin& origin,
                                   std::span<const std::string> devices,
                                   const std::string& state_layout, std::uint32_t block_tokens) {
  if (origin.model_files.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "the model's files were not given: its hash is part of the namespace");
  }
  Text text;
  text.add("version", std::string(kVersion));
  std::string model = origin.model_digest;
  if (model.empty()) {
    CACHALOT_TRY_ASSIGN(model, digest_of_model(origin));
  }
  text.add("model", model);
  CACHALOT_TRY_ASSIGN(const std::string library, digest_of_files(library_files()));
  text.add("library", library);
  text.add("llama_version", std::string(llama_version()));
  text.add("state_version", LLAMA_STATE_SEQ_VERSION);
  text.add("system", std::string(llama_print_system_info()));
  for (const std::string& variable : kernel_variables()) text.add("variable", variable);
  add_devices(text, origin, devices);
  add_overrides(text, origin.model);
  add_context(text, context, origin);
  CACHALOT_TRY(add_adapters(text, "lora", origin.loras));
  CACHALOT_TRY(add_adapters(text, "control_vector", origin.control_vectors));
  text.add("state", state_layout);
  text.add("block_tokens", block_tokens);
  text.add("salt", origin.salt);
  return text.take();
}

}  // namespace cachalot::llama

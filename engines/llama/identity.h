// What the bytes of a KV block depend on besides its tokens, as one text: the fingerprint of the
// namespace in which a llama.cpp process finds and stores blocks.
//
// Two processes share blocks only if all of this is equal. What is not known to be harmless is in it:
// a block too few costs a computation, a block too many an answer.
//
//   the model      SHA-256 of its files; what it was loaded with: devices, layers on them, buffers,
//                  overridden metadata
//   the build      SHA-256 of the loaded libllama and libggml* files, llama_version(), the version of
//                  the state's format, the instruction sets in use (kernels round differently),
//                  environment variables that pick kernels
//   the context    K and V types as they lie in a state, V not transposed, RoPE and YaRN parameters,
//                  kind of attention, whether the context is longer than the model was trained for
//   what is on top LoRA adapters and control vectors with their strengths, a salt
//   the shape      tokens a block; prompts are computed block by block, one block a micro-batch
#pragma once

#include <cachalot/result.h>
#include <llama.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::llama {

// A file that changes what a model computes, and how strongly.
struct Adapter {
  std::string file;
  float scale = 1.0f;
};

// Where a context comes from: libllama does not tell, so its creator does.
struct Origin {
  std::vector<std::string> model_files;  // all of a split model's (see split_model_files)
  std::string model_digest =
      {};  // their digest_of_model(), where it is known; empty: they are read
  std::string model_marks =
      {};  // their marks_of_files() before they were loaded; empty: not compared
  llama_model_params model = llama_model_default_params();        // as it was loaded with
  llama_context_params context = llama_context_default_params();  // as it was made with
  std::vector<Adapter> loras;  // in the order in which they were set
  std::vector<Adapter> control_vectors;
  std::string salt;  // a tenant's secret, or whatever else shall keep blocks apart
};

// All files of the model whose first (or only) one is `path`.
std::vector<std::string> split_model_files(const std::string& path);

// SHA-256 over the content of all files, in hexadecimal.
// @errors kNotFound, kPermission, kIo
// @cost   reads every byte: about 0.6 s a GiB that is in the page cache, once for each process
Result<std::string> digest_of_files(std::span<const std::string> files);

// What another file that takes the place of one of these differs in: inode, size, time of the last change.
// Empty: one of them is not there.
std::string marks_of_files(std::span<const std::string> files);

// SHA-256 of the files that the model was loaded from.
// @errors kStale: other files are at their paths by now; as digest_of_files
Result<std::string> digest_of_model(const Origin& origin);

// SHA-256 of a text, in hexadecimal. @errors kUnsupported
Result<std::string> digest_of_text(std::string_view text);

// What computes beside this machine's cores, of the devices that a model was loaded for: name and kind.
std::vector<std::string> devices_of(const llama_model_params& model);

// @param devices  devices_of(origin.model)
// @param state_layout  BlobLayout::describe(): what the context's state looks like
// @errors as digest_of_model
Result<std::string> fingerprint_of(const llama_context* context, const Origin& origin,
                                   std::span<const std::string> devices,
                                   const std::string& state_layout, std::uint32_t block_tokens);

}  // namespace cachalot::llama

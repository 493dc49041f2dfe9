// libcachalot-llama-preload.so: the functions of libllama that stand before its own.
//
//   CACHALOT_POOL=/dev/shm/kv LD_PRELOAD=…/libcachalot-llama-preload.so llama-server -m model.gguf
//
// A program's calls come here first; what a context's SharedContext does not want goes on as it came.
// What this library itself calls, and what libllama calls of its own, goes straight on: `inside` says so.
// Contexts of which nothing is shared are not in the table, and are not touched.
#include <dlfcn.h>
#include <llama.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "settings.h"
#include "shared_context.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))
// The next function of this name: libllama's.
#define REAL(name) (real<decltype(&name)>(#name, [] { return dlsym(RTLD_NEXT, #name); }))

namespace cachalot::llama {
namespace {

template <class Function, class Find>
Function real(const char* name, Find find) {
  static void* const found =
      find();  // one for each place of use, as each `find` has a type of its own
  if (found == nullptr) {
    say("%s: not found in this program's libllama", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

thread_local int inside = 0;

struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

// What a model was loaded from, with copies of what its parameters point to.
struct LoadedModel {
  Origin origin;
  std::vector<ggml_backend_dev_t> devices;
  std::vector<llama_model_kv_override> overrides;
  std::deque<std::string> patterns;
  std::vector<llama_model_tensor_buft_override> buffers;
  std::vector<float> split;
};

using BatchEntries = std::vector<Entry>;

// @threads any, under its mutex; a SharedContext is used by the thread that decodes
struct Table {
  std::mutex mutex;
  std::map<const llama_model*, std::unique_ptr<LoadedModel>> models;
  std::map<const llama_context*, std::unique_ptr<SharedContext>> contexts;
  std::map<const void*, SharedContext*> memories;  // llama_memory_t
  std::map<const llama_batch_ext*, BatchEntries> batches;
};
Table& table() {
  static Table* const all = new Table;  // never goes: programs call libllama until their very end
  return *all;
}

const std::optional<Settings>& settings() {
  static const std::optional<Settings> read = []() -> std::optional<Settings> {
    Result<std::optional<Settings>> result =
        read_settings([](const char* name) -> const char* { return std::getenv(name); });
    if (result) return *std::move(result);
    say("off: %s", result.error().message);
    return {};
  }();
  return read;
}

// Structures are handed over by value, and differ from release to release: with another one nothing
// here can even pass a call on.
void check_release() {
  static const bool is_checked = [] {
    const std::string found = REAL(llama_version)();
    if (found.substr(0, found.find('-')) != CACHALOT_LLAMA_VERSION) {
      say("this library was built for llama.cpp %s, the program has %s: build the library with "
          "that release, or unset LD_PRELOAD",
          CACHALOT_LLAMA_VERSION, found.c_str());
      std::exit(2);
    }
    return true;
  }();
  (void)is_checked;
}

SharedContext* shared_of(const llama_context* context) {
  if (inside != 0) return nullptr;
  const std::lock_guard lock(table().mutex);
  const auto at = table().contexts.find(context);
  return at == table().contexts.end() ? nullptr : at->second.get();
}

SharedContext* shared_of_memory(llama_memory_t memory) {
  if (inside != 0) return nullptr;
  const std::lock_guard lock(table().mutex);
  const auto at = table().memories.find(memory);
  return at == table().memories.end() ? nullptr : at->second;
}

// --- Models --------------------------------------------------------------------------------------

struct ModelFiles {
  explicit ModelFiles(std::vector<std::string> of)
      : paths(std::move(of)), marks(settings() ? marks_of_files(paths) : "") {}
  std::vector<std::string> paths;
  std::string marks;
};

std::unique_ptr<LoadedModel> describe(ModelFiles files, const llama_model_params& params) {
  auto model = std::make_unique<LoadedModel>();
  model->origin.model_files = std::move(files.paths);
  model->origin.model_marks = std::move(files.marks);
  llama_model_params& copy = model->origin.model = params;
  copy.progress_callback = nullptr;
  if (params.devices != nullptr) {
    for (auto* at = params.devices; *at != nullptr; ++at) model->devices.push_back(*at);
    model->devices.push_back(nullptr);
    copy.devices = model->devices.data();
  }
  if (params.kv_overrides != nullptr) {
    for (auto* at = params.kv_overrides; at->key[0] != 0; ++at) model->overrides.push_back(*at);
    model->overrides.push_back({});
    copy.kv_overrides = model->overrides.data();
  }
  if (params.tensor_buft_overrides != nullptr) {
    for (auto* at = params.tensor_buft_overrides; at->pattern != nullptr; ++at) {
      model->buffers.push_back({model->patterns.emplace_back(at->pattern).c_str(), at->buft});
    }
    model->buffers.push_back({nullptr, nullptr});
    copy.tensor_buft_overrides = model->buffers.data();
  }
  if (params.tensor_split != nullptr) {
    model->split.assign(params.tensor_split, params.tensor_split + llama_max_devices());
    copy.tensor_split = model->split.data();
  }
  return model;
}

// @param files  as they were before the model was loaded
llama_model* remember(llama_model* loaded, ModelFiles files, const llama_model_params& params) {
  // One without weights is asked for its sizes only.
  if (loaded == nullptr || !settings() || inside != 0 || params.vocab_only || params.no_alloc)
    return loaded;
  auto model = describe(std::move(files), params);
  const std::lock_guard lock(table().mutex);
  table().models[loaded] = std::move(model);
  return loaded;
}

// --- Contexts ------------------------------------------------------------------------------------

// Why a context is none to share; empty: it may be.
std::string unsuitable(const llama_context_params& params) {
  if (params.ctx_other != nullptr || params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT)
    return "it serves another context";
  if (params.embeddings) return "it computes embeddings";
  if (!params.kv_unified && params.n_seq_max > 1)
    return "its KV cache is not unified: add --kv-unified";
  if (params.n_samplers != 0) return "it samples on the backend";
  return "";
}

// Makes the context with one more sequence, for our own use, and opens it for sharing.
llama_context* make_shared(llama_model* model, const llama_context_params& params,
                           const Origin& origin) {
  llama_context_params more = params;
  const std::uint32_t sequences = params.n_seq_max == 0 ? 1 : params.n_seq_max;
  more.n_seq_max = sequences + 1;
  more.kv_unified = true;
  if (more.n_outputs_max != 0) ++more.n_outputs_max;
  llama_context* const context = REAL(llama_init_from_model)(model, more);
  if (context == nullptr) return nullptr;
  PromptCacheOptions options = settings()->cache;
  const std::string salt = options.origin.salt;
  options.origin = origin;
  options.origin.salt = salt;
  options.origin.context = more;
  options.on_warning = [](const char* message) { say("%s", message); };
  Result<std::unique_ptr<SharedContext>> shared =
      SharedContext::open(context, sequences, options, settings()->is_verbose);
  if (!shared) {
    say("prompts are not shared: %s", shared.error().message);
    REAL(llama_free)(context);
    return nullptr;
  }
  const std::lock_guard lock(table().mutex);
  table().memories[llama_get_memory(context)] = shared->get();
  table().contexts[context] = *std::move(shared);
  return context;
}

}  // namespace
}  // namespace cachalot::llama

using namespace cachalot::llama;  // NOLINT: below is C

EXPORTED llama_model* llama_model_load_from_file(const char* path, llama_model_params params) {
  check_release();
  ModelFiles files(split_model_files(path));
  llama_model* const loaded = REAL(llama_model_load_from_file)(path, params);
  return remember(loaded, std::move(files), params);
}

EXPORTED llama_model* llama_model_load_from_splits(const char** paths, std::size_t count,
                                                   llama_model_params params) {
  check_release();
  ModelFiles files({paths, paths + count});
  llama_model* const loaded = REAL(llama_model_load_from_splits)(paths, count, params);
  return remember(loaded, std::move(files), params);
}

EXPORTED void llama_model_free(llama_model* model) {
  {
    const std::lock_guard lock(table().mutex);
    table().models.erase(model);
  }
  REAL(llama_model_free)(model);
}

EXPORTED llama_context* llama_init_from_model(llama_model* model, llama_context_params params) {
  check_release();
  const LoadedModel* loaded = nullptr;
  if (settings() && inside == 0) {
    const std::lock_guard lock(table().mutex);
    const auto at = table().models.find(model);
    if (at != table().models.end()) loaded = at->second.get();
  }
  if (loaded != nullptr) {
    const Inside here;
    const std::string why = unsuitable(params);
    if (!why.empty()) say("prompts of a context are not shared: %s", why.c_str());
    llama_context* const context =
        why.empty() ? make_shared(model, params, loaded->origin) : nullptr;
    if (context != nullptr) return context;
  }
  return REAL(llama_init_from_model)(model, params);
}

EXPORTED void llama_free(llama_context* context) {
  std::unique_ptr<SharedContext> shared;
  {
    const std::lock_guard lock(table().mutex);
    const auto at = table().contexts.find(context);
    if (at != table().contexts.end()) {
      shared = std::move(at->second);
      table().contexts.erase(at);
      std::erase_if(table().memories,
                    [&](const auto& entry) { return entry.second == shared.get(); });
    }
  }
  shared.reset();
  REAL(llama_free)(context);
}

EXPORTED std::uint32_t llama_n_seq_max(const llama_context* context) {
  const SharedContext* const shared = shared_of(context);
  return shared != nullptr ? shared->sequences() : REAL(llama_n_seq_max)(context);
}

// --- Decoding ------------------------------------------------------------------------------------

EXPORTED std::int32_t llama_decode(llama_context* context, llama_batch batch) {
  SharedContext* const shared = shared_of(context);
  if (shared == nullptr) return REAL(llama_decode)(context, batch);
  const Inside here;
  BatchEntries entries(static_cast<std::size_t>(std::max(batch.n_tokens, 0)));
  const std::int32_t last = batch.n_tokens - 1;
  for (std::int32_t i = 0; i <= last; ++i) {
    Entry& entry = entries[static_cast<std::size_t>(i)];
    entry.is_plain = batch.token != nullptr && batch.embd == nullptr;
    if (entry.is_plain) entry.token = batch.token[i];
    if (batch.seq_id == nullptr) {
      entry.sequences = {0};
    } else {
      entry.sequences.assign(batch.seq_id[i], batch.seq_id[i] + batch.n_seq_id[i]);
    }
    // Where no positions are given, they follow what the sequence holds.
    const llama_seq_id first = entry.sequences.empty() ? 0 : entry.sequences[0];
    entry.position = batch.pos != nullptr
                         ? batch.pos[i]
                         : llama_memory_seq_pos_max(llama_get_memory(context), first) + 1 + i;
    entry.is_output = batch.logits != nullptr ? batch.logits[i] != 0 : i == last;
  }
  return shared->decode(entries, [&] { return REAL(llama_decode)(context, batch); });
}

EXPORTED std::int32_t llama_process(llama_context* context, llama_process_type type,
                                    llama_batch_ext* batch) {
  SharedContext* const shared = shared_of(context);
  if (shared == nullptr || type != LLAMA_PROCESS_TYPE_DECODE)
    return REAL(llama_process)(context, type, batch);
  BatchEntries entries;
  {
    const std::lock_guard lock(table().mutex);
    entries = table().batches[batch];
  }
  const Inside here;
  return shared->decode(entries, [&] { return REAL(llama_process)(context, type, batch); });
}

// What is in a batch of this kind cannot be seen, so it is written down when it comes.
namespace {
Entry* entry_of(const llama_batch_ext* batch, std::int32_t index) {
  BatchEntries& entries = table().batches[batch];
  return index >= 0 && static_cast<std::size_t>(index) < entries.size()
             ? &entries[static_cast<std::size_t>(index)]
             : nullptr;
}

template <class Change>
void change_entry(const llama_batch_ext* batch, std::int32_t index, Change&& change) {
  if (inside != 0 || !settings()) return;
  const std::lock_guard lock(table().mutex);
  if (Entry* const entry = entry_of(batch, index)) change(*entry);
}

std::int32_t added(const llama_batch_ext* batch, std::int32_t index, llama_seq_id sequence,
                   std::optional<llama_token> token) {
  if (index < 0 || inside != 0 || !settings()) return index;
  const std::lock_guard lock(table().mutex);
  BatchEntries& entries = table().batches[batch];
  entries.resize(static_cast<std::size_t>(index) + 1);
  Entry& entry = entries.back();
  entry.sequences = {sequence};
  entry.is_plain = token.has_value();
  if (token) entry.token = *token;
  return index;
}
}  // namespace

EXPORTED void llama_batch_ext_free(llama_batch_ext* batch) {
  {
    const std::lock_guard lock(table().mutex);
    table().batches.erase(batch);
  }
  REAL(llama_batch_ext_free)(batch);
}

EXPORTED void llama_batch_ext_clear(llama_batch_ext* batch) {
  {
    const std::lock_guard lock(table().mutex);
    table().batches.erase(batch);
  }
  REAL(llama_batch_ext_clear)(batch);
}

EXPORTED std::int32_t llama_batch_ext_add(llama_batch_ext* batch, llama_seq_id sequence) {
  return added(batch, REAL(llama_batch_ext_add)(batch, sequence), sequence, {});
}

EXPORTED std::int32_t llama_batch_ext_add_token(llama_batch_ext* batch, llama_seq_id sequence,
                                                llama_token token) {
  return added(batch, REAL(llama_batch_ext_add_token)(batch, sequence, token), sequence, token);
}

EXPORTED std::int32_t llama_batch_ext_add_embd(llama_batch_ext* batch, llama_seq_id sequence,
                                               llama_embd embedding) {
  return added(batch, REAL(llama_batch_ext_add_embd)(batch, sequence, embedding), sequence, {});
}

EXPORTED bool llama_batch_ext_add_seq(llama_batch_ext* batch, std::int32_t index,
                                      llama_seq_id sequence) {
  const bool done = REAL(llama_batch_ext_add_seq)(batch, index, sequence);
  if (done) change_entry(batch, index, [&](Entry& entry) { entry.sequences.push_back(sequence); });
  return done;
}

EXPORTED bool llama_batch_ext_set_embd_token(llama_batch_ext* batch, std::int32_t index,
                                             llama_embd embedding) {
  change_entry(batch, index, [](Entry& entry) { entry.is_plain = false; });
  return REAL(llama_batch_ext_set_embd_token)(batch, index, embedding);
}

EXPORTED bool llama_batch_ext_set_embd_state(llama_batch_ext* batch, std::int32_t index,
                                             llama_embd embedding) {
  change_entry(batch, index, [](Entry& entry) { entry.is_plain = false; });
  return REAL(llama_batch_ext_set_embd_state)(batch, index, embedding);
}

EXPORTED bool llama_batch_ext_set_output_embd(llama_batch_ext* batch, std::int32_t index,
                                              bool value) {
  const bool done = REAL(llama_batch_ext_set_output_embd)(batch, index, value);
  if (done) change_entry(batch, index, [&](Entry& entry) { entry.is_output = value; });
  return done;
}

EXPORTED bool llama_batch_ext_set_output_logits(llama_batch_ext* batch, std::int32_t index,
                                                bool value) {
  const bool done = REAL(llama_batch_ext_set_output_logits)(batch, index, value);
  if (done) change_entry(batch, index, [&](Entry& entry) { entry.is_output = value; });
  return done;
}

EXPORTED bool llama_batch_ext_set_pos(llama_batch_ext* batch, std::int32_t index,
                                      const llama_pos* position) {
  const bool done = REAL(llama_batch_ext_set_pos)(batch, index, position);
  if (done) change_entry(batch, index, [&](Entry& entry) { entry.position = *position; });
  return done;
}

// --- Outputs -------------------------------------------------------------------------------------

// @param type of the result
#define OUTPUT_OF_ENTRY(type, name)                                                      \
  EXPORTED type name(llama_context* context, std::int32_t index) {                       \
    const SharedContext* const shared = shared_of(context);                              \
    return REAL(name)(context, shared == nullptr ? index : shared->output_index(index)); \
  }
OUTPUT_OF_ENTRY(float*, llama_get_logits_ith)
OUTPUT_OF_ENTRY(float*, llama_get_embeddings_ith)
OUTPUT_OF_ENTRY(llama_token, llama_get_sampled_token_ith)
OUTPUT_OF_ENTRY(float*, llama_get_sampled_probs_ith)
OUTPUT_OF_ENTRY(std::uint32_t, llama_get_sampled_probs_count_ith)
OUTPUT_OF_ENTRY(float*, llama_get_sampled_logits_ith)
OUTPUT_OF_ENTRY(std::uint32_t, llama_get_sampled_logits_count_ith)
OUTPUT_OF_ENTRY(llama_token*, llama_get_sampled_candidates_ith)
OUTPUT_OF_ENTRY(std::uint32_t, llama_get_sampled_candidates_count_ith)
#undef OUTPUT_OF_ENTRY

EXPORTED llama_token llama_sampler_sample(llama_sampler* sampler, llama_context* context,
                                          std::int32_t index) {
  const SharedContext* const shared = shared_of(context);
  if (shared != nullptr) index = shared->output_index(index);
  const Inside here;  // it asks for the output by the index that it is given
  return REAL(llama_sampler_sample)(sampler, context, index);
}

// --- Sequences -----------------------------------------------------------------------------------

EXPORTED void llama_memory_clear(llama_memory_t memory, bool data) {
  if (SharedContext* const shared = shared_of_memory(memory)) shared->cleared();
  REAL(llama_memory_clear)(memory, data);
}

EXPORTED bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id sequence, llama_pos from,
                                  llama_pos to) {
  const bool done = REAL(llama_memory_seq_rm)(memory, sequence, from, to);
  if (SharedContext* const shared = shared_of_memory(memory); shared != nullptr && done)
    shared->removed(sequence, from, to);
  return done;
}

EXPORTED void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to,
                                  llama_pos first, llama_pos last) {
  if (SharedContext* const shared = shared_of_memory(memory)) shared->copied(from, to, first, last);
  REAL(llama_memory_seq_cp)(memory, from, to, first, last);
}

EXPORTED void llama_memory_seq_keep(llama_memory_t memory, llama_seq_id sequence) {
  if (SharedContext* const shared = shared_of_memory(memory)) shared->kept_only(sequence);
  REAL(llama_memory_seq_keep)(memory, sequence);
}

EXPORTED void llama_memory_seq_add(llama_memory_t memory, llama_seq_id sequence, llama_pos from,
                                   llama_pos to, llama_pos delta) {
  if (SharedContext* const shared = shared_of_memory(memory)) shared->shifted(sequence);
  REAL(llama_memory_seq_add)(memory, sequence, from, to, delta);
}

EXPORTED void llama_memory_seq_div(llama_memory_t memory, llama_seq_id sequence, llama_pos from,
                                   llama_pos to, int divisor) {
  if (SharedContext* const shared = shared_of_memory(memory)) shared->shifted(sequence);
  REAL(llama_memory_seq_div)(memory, sequence, from, to, divisor);
}

// --- States: which tokens come with them only the program knows ----------------------------------

EXPORTED std::size_t llama_state_seq_set_data(llama_context* context, const std::uint8_t* from,
                                              std::size_t bytes, llama_seq_id sequence) {
  if (SharedContext* const shared = shared_of(context)) shared->changed(sequence);
  return REAL(llama_state_seq_set_data)(context, from, bytes, sequence);
}

EXPORTED std::size_t llama_state_seq_set_data_ext(llama_context* context, const std::uint8_t* from,
                                                  std::size_t bytes, llama_seq_id sequence,
                                                  llama_state_seq_flags flags) {
  if (SharedContext* const shared = shared_of(context)) shared->changed(sequence);
  return REAL(llama_state_seq_set_data_ext)(context, from, bytes, sequence, flags);
}

EXPORTED std::size_t llama_state_seq_load_file(llama_context* context, const char* path,
                                               llama_seq_id sequence, llama_token* tokens,
                                               std::size_t capacity, std::size_t* count) {
  if (SharedContext* const shared = shared_of(context)) shared->changed(sequence);
  return REAL(llama_state_seq_load_file)(context, path, sequence, tokens, capacity, count);
}

EXPORTED std::size_t llama_state_set_data(llama_context* context, const std::uint8_t* from,
                                          std::size_t bytes) {
  if (SharedContext* const shared = shared_of(context)) shared->changed(-1);
  return REAL(llama_state_set_data)(context, from, bytes);
}

EXPORTED bool llama_state_load_file(llama_context* context, const char* path, llama_token* tokens,
                                    std::size_t capacity, std::size_t* count) {
  if (SharedContext* const shared = shared_of(context)) shared->changed(-1);
  return REAL(llama_state_load_file)(context, path, tokens, capacity, count);
}

// --- What changes the bytes of blocks ------------------------------------------------------------

EXPORTED std::int32_t llama_set_adapters_lora(llama_context* context, llama_adapter_lora** adapters,
                                              std::size_t count, float* scales) {
  SharedContext* const shared = shared_of(context);
  if (shared != nullptr && count != 0) shared->stop("a LoRA adapter is in use");
  return REAL(llama_set_adapters_lora)(context, adapters, count, scales);
}

EXPORTED std::int32_t llama_set_adapter_cvec(llama_context* context, const float* data,
                                             std::size_t length, std::int32_t width,
                                             std::int32_t first, std::int32_t last) {
  SharedContext* const shared = shared_of(context);
  if (shared != nullptr && data != nullptr) shared->stop("a control vector is in use");
  return REAL(llama_set_adapter_cvec)(context, data, length, width, first, last);
}

EXPORTED void llama_set_causal_attn(llama_context* context, bool is_causal) {
  SharedContext* const shared = shared_of(context);
  if (shared != nullptr && !is_causal) shared->stop("attention is not causal");
  REAL(llama_set_causal_attn)(context, is_causal);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // programs still call it
EXPORTED void llama_set_warmup(llama_context* context, bool is_on) {
  if (SharedContext* const shared = shared_of(context)) shared->set_warmup(is_on);
  REAL(llama_set_warmup)(context, is_on);
}
#pragma GCC diagnostic pop

EXPORTED void llama_set_embeddings(llama_context* context, bool is_on) {
  SharedContext* const shared = shared_of(context);
  if (shared != nullptr && is_on) shared->stop("embeddings are computed");
  REAL(llama_set_embeddings)(context, is_on);
}

// `cachalot-llama`: a small OpenAI-compatible server on llama.cpp whose prompts are shared with other
// processes through a pool.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "../host_cache.h"
#include "../prefetch_policy.h"
#include "../whole_number.h"
#include "base/byte_size.h"
#include "engine.h"
#include "http_server.h"
#include "model.h"
#include "os/memory.h"
#include "own_keeper.h"

namespace cachalot::llama {
namespace {

// Exit codes, as of cachalot: 0 ended by a signal; 1 a fault; 2 bad usage or model; 3 the
// environment prevents it.
constexpr int kExitFault = 1, kExitUsage = 2, kExitRefused = 3;

constexpr std::uint64_t kMillisecond = 1'000'000;

struct KvType {
  const char* name;
  ggml_type type;
};
constexpr std::array kKvTypes = {KvType{"f16", GGML_TYPE_F16}, KvType{"bf16", GGML_TYPE_BF16},
                                 KvType{"f32", GGML_TYPE_F32}, KvType{"q8_0", GGML_TYPE_Q8_0}};

struct Options {
  std::string model, chat_template, kv_type = "f16", salt;
  HttpOptions http;
  EngineOptions engine;
  std::uint32_t context_tokens = 0;  // 0: the model's own, at most 4096
  std::vector<std::string> pool;
  std::string host_cache;  // a size; empty: none
  std::string storage, storage_capacity;
  std::uint32_t host = 0, keeper_wait_s = 10;
  bool allow_foreign_pool = false;
  std::uint32_t flight_wait_ms = 30'000, stop_wait_s = 5;
  std::string prefetch_policy = "timeout";
  std::uint32_t prefetch_threshold = PrefetchOptions().threshold_tokens;
  std::uint64_t prefetch_base_ms = PrefetchOptions().timeout_base_ns / kMillisecond;
  std::uint64_t prefetch_per_ki_token_ms = PrefetchOptions().timeout_per_ki_token_ns / kMillisecond;
  std::vector<std::string> transfer_listen;  // empty: no transfers
  std::string transfer_memory;               // a size; empty: for the contexts of all slots
  std::uint32_t transfer_deadline_s = 30, transfer_peer_timeout_s = 5;
  bool transfer_checksums = false;
  bool is_verbose = false, prints_block_bytes = false;
};

bool print_everything = false;

void on_llama_log(ggml_log_level level, const char* text, void*) {
  if (print_everything || level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

void print_line(const char* of, const char* message) {
  std::string line = message;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  std::fprintf(stderr, "cachalot-llama: %s%s\n", of, line.c_str());
}

int fail(const Error& error) {
  print_line("", error.message);
  switch (error.code) {
    case Code::kInvalidArgument:
    case Code::kBadInput:
    case Code::kNotFound:
    case Code::kNotAPool:
    case Code::kVersionMismatch:
      return kExitUsage;
    case Code::kInternal:
    case Code::kCorrupt:
      return kExitFault;
    default:
      return kExitRefused;
  }
}

Result<ggml_type> kv_type_of(const std::string& name) {
  for (const KvType& type : kKvTypes) {
    if (name == type.name) return type.type;
  }
  return Error::make(Code::kInvalidArgument,
                     "--kv-type is \"%.40s\", expected f16, bf16, f32 or q8_0", name.c_str());
}

std::uint32_t context_tokens_of(const Options& options, const Model& model) {
  constexpr std::uint32_t kDefault = 4096;
  if (options.context_tokens != 0) return options.context_tokens;
  return std::min(kDefault, model.trained_context_tokens());
}

// Not refused: some models are good for more than they were trained on.
void warn_of_context(const Options& options, const Model& model) {
  const std::uint32_t trained = model.trained_context_tokens();
  if (options.engine.slot.context_tokens <= trained) return;
  std::fprintf(stderr,
               "cachalot-llama: --context is %u, but the model was trained with %u tokens: expect "
               "nonsense after them\n",
               options.engine.slot.context_tokens, trained);
}

Result<std::optional<PrefetchOptions>> prefetch_options(const Options& options) {
  if (options.prefetch_policy == "off") return std::optional<PrefetchOptions>();
  PrefetchOptions prefetch;
  CACHALOT_TRY_ASSIGN(prefetch.stop,
                      parse_prefetch_policy("--prefetch-policy", options.prefetch_policy));
  prefetch.threshold_tokens = options.prefetch_threshold;
  prefetch.timeout_base_ns = options.prefetch_base_ms * kMillisecond;
  prefetch.timeout_per_ki_token_ns = options.prefetch_per_ki_token_ms * kMillisecond;
  return std::optional(prefetch);
}

// @param model_marks  of the model's files, before they were loaded
Result<PromptCacheOptions> pool_options(const Options& options, const llama_model_params& params,
                                        const std::string& model_marks) {
  PromptCacheOptions pool;
  pool.pool = options.pool;
  pool.host = options.host;
  pool.allow_foreign_pool = options.allow_foreign_pool;
  pool.flight_wait_ns = std::uint64_t{options.flight_wait_ms} * 1'000'000;
  CACHALOT_TRY_ASSIGN(pool.prefetch, prefetch_options(options));
  pool.origin.model_files = split_model_files(options.model);
  pool.origin.model_marks = model_marks;
  // Once, rather than for each slot.
  CACHALOT_TRY_ASSIGN(pool.origin.model_digest, digest_of_model(pool.origin));
  pool.origin.model = params;
  pool.origin.salt = options.salt;
  pool.on_warning = [](const char* message) {
    std::fprintf(stderr, "cachalot-llama: pool: %s\n", message);
  };
  return pool;
}

// @errors kInvalidArgument; kNoSpace: the machine has less memory
Result<std::uint64_t> memory_size(const char* flag, const std::string& text) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, base::parse_byte_size(flag, text));
  const os::AvailableMemory memory = os::available_memory();
  if (bytes <= memory.bytes) return bytes;
  return Error::make(Code::kNoSpace, "%s is %.40s, and %.60s has %llu bytes left: expected no more",
                     flag, text.c_str(), memory.limited_by.c_str(),
                     static_cast<unsigned long long>(memory.bytes));
}

// @return null: none is wanted
// @errors kInvalidArgument; kNoSpace: the machine has less memory
Result<std::shared_ptr<HostCache>> make_host_cache(const Options& options) {
  if (options.host_cache.empty()) return std::shared_ptr<HostCache>();
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, memory_size("--host-cache", options.host_cache));
  return std::make_shared<HostCache>(bytes);
}

// @return none: no transfers
// @errors kInvalidArgument; kNoSpace: the machine has less memory
Result<std::optional<HandoverOptions>> transfer_options(const Options& options) {
  if (options.transfer_listen.empty()) return std::optional<HandoverOptions>();
  constexpr std::uint64_t kSecond = 1'000'000'000;
  HandoverOptions transfer;
  transfer.listen = options.transfer_listen;
  transfer.deadline_ns = options.transfer_deadline_s * kSecond;
  transfer.peer_timeout_ns = options.transfer_peer_timeout_s * kSecond;
  transfer.checksums = options.transfer_checksums;
  transfer.on_warning = [](const char* message) { print_line("transfer: ", message); };
  if (options.transfer_memory.empty()) return std::optional(transfer);
  CACHALOT_TRY_ASSIGN(transfer.staging_bytes,
                      memory_size("--transfer-memory", options.transfer_memory));
  return std::optional(transfer);
}

Status check_storage_flags(const Options& options) {
  if (options.storage.empty()) return {};
  if (!options.pool.empty()) {
    return Error::make(
        Code::kInvalidArgument,
        "--storage with --pool: the storage behind a pool is its keeper's, expected `cachalot "
        "serve --storage %.80s`",
        options.storage.c_str());
  }
  if (!options.host_cache.empty()) return {};
  return Error::make(
      Code::kInvalidArgument,
      "--storage without --host-cache, expected --host-cache SIZE: the memory in front of it");
}

// A private pool in place of the host cache, since only pools have storage behind them.
Result<std::optional<OwnKeeper>> start_own_keeper(const Options& options, const Model& model,
                                                  const HostCache& memory) {
  OwnKeeperOptions keeper{options.storage, options.storage_capacity, memory.capacity_bytes(), 0,
                          options.engine.slots};
  CACHALOT_TRY_ASSIGN(keeper.block_bytes, block_bytes_of(model, options.engine.slot));
  CACHALOT_TRY_ASSIGN(OwnKeeper started, OwnKeeper::start(keeper));
  return std::optional(std::move(started));
}

// A keeper may be about to start, and make its pool.
bool may_still_come(Code code) {
  return code == Code::kNoKeeper || code == Code::kNotFound || code == Code::kNotAPool ||
         code == Code::kBusy;
}

Result<std::unique_ptr<Engine>> start_engine(const Options& options, const Model& model) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(options.keeper_wait_s);
  for (;;) {
    Result<std::unique_ptr<Engine>> engine = Engine::start(model, options.engine);
    if (engine || !may_still_come(engine.error().code) ||
        std::chrono::steady_clock::now() >= deadline) {
      return engine;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// The signals that end the program: for sigwait() in this thread, in no other.
sigset_t block_signals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return ending;
}

void print_ready(const Options& options, const HttpServer& server, const Engine& engine) {
  const std::string& address = options.http.address;
  const std::string host = address.find(':') == std::string::npos ? address : "[" + address + "]";
  std::printf("ready pid=%d url=http://%s:%u model=%s slots=%zu context=%u pool=%s", getpid(),
              host.c_str(), server.port(), options.http.model_name.c_str(), options.engine.slots,
              engine.context_tokens(),
              options.pool.empty() ? "none" : options.pool.front().c_str());
  for (const std::string& own : engine.transfer_addresses())
    std::printf(" transfer=%s", own.c_str());
  std::puts("");
  std::fflush(stdout);
}

// Takes no more requests, and lets those that are there end: for a while, or until the next signal.
void finish_requests(Engine& engine, const sigset_t& ending, std::chrono::seconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const timespec pause{0, 10'000'000};
  engine.close();
  for (;;) {
    const Engine::Load load = engine.load();
    if (load.busy_slots + load.queued == 0 || std::chrono::steady_clock::now() >= deadline) return;
    if (sigtimedwait(&ending, nullptr, &pause) > 0) return;
  }
}

Status print_block_bytes(const Model& model, const SlotOptions& options) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes, block_bytes_of(model, options));
  std::printf("%llu\n", static_cast<unsigned long long>(bytes));
  return {};
}

Status serve(Options& options) {
  const sigset_t ending = block_signals();
  CACHALOT_TRY_ASSIGN(options.engine.slot.kv_type, kv_type_of(options.kv_type));
  CACHALOT_TRY(prefetch_options(options));
  CACHALOT_TRY(check_storage_flags(options));
  CACHALOT_TRY_ASSIGN(std::shared_ptr<HostCache> host_cache, make_host_cache(options));
  CACHALOT_TRY_ASSIGN(options.engine.transfer, transfer_options(options));
  print_everything = options.is_verbose;
  llama_log_set(on_llama_log, nullptr);
  llama_backend_init();
  ggml_backend_load_all();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  const std::string model_marks = marks_of_files(split_model_files(options.model));
  CACHALOT_TRY_ASSIGN(const Model model, Model::load(options.model, options.chat_template, params));
  options.engine.slot.context_tokens = context_tokens_of(options, model);
  if (options.prints_block_bytes) return print_block_bytes(model, options.engine.slot);
  CACHALOT_TRY(check_memory(model, options.engine.slot, options.engine.slots));
  warn_of_context(options, model);
  std::optional<OwnKeeper> keeper;  // outlives the engine
  if (!options.storage.empty()) {
    CACHALOT_TRY_ASSIGN(keeper, start_own_keeper(options, model, *host_cache));
    options.pool = {keeper->pool()};
    host_cache.reset();
  }
  if (!options.pool.empty() || host_cache || options.engine.transfer) {
    CACHALOT_TRY_ASSIGN(options.engine.slot.cache, pool_options(options, params, model_marks));
    options.engine.slot.cache->host_cache = host_cache;
  }
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Engine> engine, start_engine(options, model));
  constexpr std::uint64_t kStorageStartNs = 10'000'000'000;
  if (keeper && !engine->wait_for_storage(kStorageStartNs))
    std::fputs("cachalot-llama: --storage: it is not in use yet, going on without it\n", stderr);
  options.http.on_end = [] { kill(getpid(), SIGTERM); };
  CACHALOT_TRY_ASSIGN(std::unique_ptr<HttpServer> server,
                      HttpServer::listen(options.http, model, *engine));
  print_ready(options, *server, *engine);
  int signal = 0;
  sigwait(&ending, &signal);
  const bool has_failed = server->has_ended();
  finish_requests(*engine, ending, std::chrono::seconds(options.stop_wait_s));
  if (keeper) (void)engine->flush_to_storage(std::uint64_t{options.stop_wait_s} * 1'000'000'000);
  engine->stop();
  // Nothing more is needed: the keeper takes back what an ended process held.
  if (!server->finish()) _exit(has_failed ? kExitRefused : 0);
  const unsigned port = server->port();
  server.reset();
  if (!has_failed) return {};
  return Error::make(Code::kIo, "%.80s port %u: connections are no longer accepted",
                     options.http.address.c_str(), port);
}

void add_flags(CLI::App& app, Options& options) {
  app.add_option("--model", options.model,
                 "the model: a GGUF file, or the first file of a split model")
      ->required()
      ->type_name("FILE");
  app.add_option("--name", options.http.model_name,
                 "name of the model in the API (default: the file's name)")
      ->type_name("NAME");
  app.add_option("--address", options.http.address, "address to listen on; 0.0.0.0: all")
      ->type_name("IP")
      ->capture_default_str();
  app.add_option("--port", options.http.port,
                 "port to listen on; 0: a free one, which the ready line states")
      ->type_name("N")
      ->transform(whole_number(0, 65535))
      ->capture_default_str();
  app.add_option("--slots", options.engine.slots,
                 "requests that are served simultaneously; with --pool, each takes a client slot "
                 "of the pool")
      ->type_name("N")
      ->transform(whole_number(1, 64))
      ->capture_default_str();
  app.add_option("--queue", options.engine.queue_limit, "requests that may wait for a slot")
      ->type_name("N")
      ->transform(whole_number(0, 1024))
      ->capture_default_str();
  app.add_option("--stop-wait", options.stop_wait_s,
                 "after SIGINT or SIGTERM, requests in flight may continue for this time, then end "
                 "with an error; a second signal ends them at once")
      ->type_name("SECONDS")
      ->transform(whole_number(0, 3600))
      ->capture_default_str();
  app.add_option(
         "--context", options.context_tokens,
         "tokens of prompt and answer together, per slot (default: the model's, at most 4096)")
      ->type_name("TOKENS")
      ->transform(whole_number(64, 1u << 24));
  app.add_option("--threads", options.engine.slot.threads, "threads that compute")
      ->type_name("N")
      ->transform(whole_number(1, 512))
      ->capture_default_str();
  app.add_option("--kv-type", options.kv_type, "type of keys and values: f16, bf16, f32 or q8_0")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--chat-template", options.chat_template,
                 "name of a template that libllama knows: chatml, llama3, gemma, … (default: the "
                 "model's own)")
      ->type_name("NAME");
  app.add_flag("--verbose", options.is_verbose, "print all messages of libllama");
}

void add_pool_flags(CLI::App& app, Options& options) {
  app.add_option("--pool", options.pool,
                 "pool to share prompts in; each of --slots is a client of it; repeat the flag for "
                 "each device in order (default: none)")
      ->allow_extra_args(false)
      ->type_name("PATH");
  app.add_option("--block-tokens", options.engine.slot.block_tokens,
                 "tokens per block; equal in all processes that share")
      ->type_name("N")
      ->transform(whole_number(2, 4096))
      ->capture_default_str();
  app.add_option("--host-cache", options.host_cache,
                 "keep blocks in this process's memory, for all slots, in front of the pool or "
                 "without one: "
                 "64MiB, 1.5GiB … (default: none)")
      ->type_name("SIZE");
  CLI::Option* const storage =
      app.add_option("--storage", options.storage,
                     "without --pool: keep blocks in storage behind the memory of --host-cache: "
                     "file:DIR and all "
                     "others that `cachalot serve --storage` knows, which is started for it")
          ->type_name("URI");
  app.add_option("--storage-capacity", options.storage_capacity,
                 "bytes of blocks in storage (default: no limit)")
      ->type_name("SIZE")
      ->needs(storage);
  app.add_flag("--print-block-bytes", options.prints_block_bytes,
               "print the bytes of a block, for `cachalot serve --block-bytes`, and exit");
  app.add_option("--host", options.host,
                 "this machine's number in the pool, if several machines share it")
      ->type_name("N")
      ->transform(whole_number(0, 1023))
      ->capture_default_str();
  app.add_flag("--allow-foreign-pool", options.allow_foreign_pool,
               "also use a pool whose files belong to neither this user nor root, or that every "
               "user may write to");
  app.add_option("--keeper-wait", options.keeper_wait_s,
                 "how long the start waits for the pool and its keeper")
      ->type_name("SECONDS")
      ->transform(whole_number(0, 3600))
      ->capture_default_str();
  app.add_option("--flight-wait", options.flight_wait_ms,
                 "how long a request waits for blocks that another process computes; 0: never")
      ->type_name("MS")
      ->transform(whole_number(0, 3'600'000))
      ->capture_default_str();
  app.add_option("--salt", options.salt,
                 "share blocks only with processes of the same salt, for example of one tenant")
      ->type_name("TEXT");
}

void add_prefetch_flags(CLI::App& app, Options& options) {
  app.add_option("--prefetch-policy", options.prefetch_policy,
                 "when a request goes on with what has come from the storage behind the pool "
                 "(cachalot serve "
                 "--storage), which is asked when the request arrives: best_effort: at once when a "
                 "slot is free; "
                 "wait_complete: when all has come; timeout: when all has come, or after base + "
                 "tokens / 1024 x "
                 "per-ki-token; off: storage is not asked")
      ->type_name("POLICY")
      ->capture_default_str();
  app.add_option("--prefetch-threshold", options.prefetch_threshold,
                 "fewer tokens in storage are not fetched")
      ->type_name("TOKENS")
      ->transform(whole_number(0, 1u << 24))
      ->capture_default_str();
  app.add_option("--prefetch-timeout-base", options.prefetch_base_ms, "for policy timeout")
      ->type_name("MS")
      ->transform(whole_number(0, 3'600'000))
      ->capture_default_str();
  app.add_option("--prefetch-timeout-per-ki-token", options.prefetch_per_ki_token_ms,
                 "for policy timeout: of each 1024 tokens that storage has")
      ->type_name("MS")
      ->transform(whole_number(0, 3'600'000))
      ->capture_default_str();
}

void add_transfer_flags(CLI::App& app, Options& options) {
  CLI::Option* const listen = app.add_option("--transfer-listen", options.transfer_listen,
                                             "hand the KV of prompts to processes that share no "
                                             "pool with this one, and take it from them: "
                                             "tcp:IP:PORT (port 0: any), unix:@NAME, or auto: a "
                                             "socket of this machine; repeat the flag for "
                                             "several addresses (default: none)")
                                  ->allow_extra_args(false)
                                  ->type_name("ADDRESS");
  app.add_option("--transfer-deadline", options.transfer_deadline_s,
                 "how long a prompt is offered, and a transfer may take; then it is computed")
      ->type_name("SECONDS")
      ->transform(whole_number(1, 3600))
      ->needs(listen)
      ->capture_default_str();
  app.add_option("--transfer-peer-timeout", options.transfer_peer_timeout_s,
                 "after so long a silence a process counts as dead, while a transfer waits for it")
      ->type_name("SECONDS")
      ->transform(whole_number(1, 3600))
      ->needs(listen)
      ->capture_default_str();
  app.add_flag("--transfer-checksums", options.transfer_checksums,
               "verify every payload that this process sends")
      ->needs(listen);
  app.add_option("--transfer-memory", options.transfer_memory,
                 "memory for blocks on their way, taken as it is needed: 64MiB, 1.5GiB … (default: "
                 "as the contexts of "
                 "all slots)")
      ->type_name("SIZE")
      ->needs(listen);
}

// What is given must say something: an empty text is a variable that was not set.
CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? std::string("it is empty") : std::string(); },
      "");
}

std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

int run(int argc, char** argv) {
  CLI::App app(
      "An OpenAI-compatible server on llama.cpp. With --pool it shares the KV cache of prompts "
      "with other processes: a prompt that one process has computed is only loaded by the others. "
      "With --transfer-listen a process hands a prompt's KV to another one that shares no pool.",
      "cachalot-llama");
  app.set_version_flag("--version", "cachalot-llama " CACHALOT_VERSION);
  Options options;
  add_flags(app, options);
  add_pool_flags(app, options);
  add_prefetch_flags(app, options);
  add_transfer_flags(app, options);
  for (const char* name : {"--name", "--address", "--chat-template", "--host-cache", "--storage",
                           "--storage-capacity", "--transfer-listen", "--transfer-memory"}) {
    app.get_option(name)->check(not_empty());
  }
  app.footer(
      "Example: cachalot-llama --model stories260K.gguf --port 8081 --pool /dev/shm/kv\n         "
      "cachalot-llama --model stories260K.gguf --host-cache 1GiB --storage file:/ssd/kv\n         "
      "cachalot-llama --model stories260K.gguf --transfer-listen tcp:10.0.0.1:0\nIts pool: "
      "cachalot serve --pool /dev/shm/kv --create --capacity 1GiB --block-bytes $(cachalot-llama "
      "--model stories260K.gguf --print-block-bytes)\nExit code: 0 ended by SIGINT or SIGTERM; 1 a "
      "fault; 2 bad usage, model or pool; 3 the environment prevents it (no keeper, no memory, "
      "port taken, a model that cannot share)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return fail(
        Error::make(Code::kInvalidArgument, "%.170s (see `cachalot-llama --help`)", error.what()));
  }
  if (options.http.model_name.empty()) options.http.model_name = file_name(options.model);
  const Status status = serve(options);
  return status ? 0 : fail(status.error());
}

}  // namespace
}  // namespace cachalot::llama

int main(int argc, char** argv) {
  using namespace cachalot;
  try {
    return llama::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return llama::fail(Error::make(Code::kNoSpace, "out of memory"));
  } catch (const std::exception& error) {
    return llama::fail(Error::make(Code::kInternal, "unexpected: %.150s", error.what()));
  }
}

#include "engine_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/rng.h"
#include "block_hash/block_hash.h"

namespace cachalot::llama {
namespace {

constexpr std::uint32_t kGenerated = 32;
constexpr char kAnswerFollows = 'a', kPauseFollows = 'p';

bool read_all(int fd, void* to, std::size_t bytes) {
  for (auto* at = static_cast<char*>(to); bytes != 0;) {
    const ssize_t got = read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t bytes) {
  for (auto* at = static_cast<const char*>(from); bytes != 0;) {
    const ssize_t put = write(fd, at, bytes);
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

template <class T>
bool read_vector(int fd, std::vector<T>& to) {
  std::uint64_t count = 0;
  if (!read_all(fd, &count, sizeof count)) return false;
  to.resize(count);
  return read_all(fd, to.data(), count * sizeof(T));
}

template <class T>
bool write_vector(int fd, const std::vector<T>& from) {
  const std::uint64_t count = from.size();
  return write_all(fd, &count, sizeof count) && write_all(fd, from.data(), count * sizeof(T));
}

bool write_text(int fd, const std::string& text) {
  return write_vector(fd, std::vector<char>(text.begin(), text.end()));
}

// --- In the engine's process ---------------------------------------------------------------------

// A fail point's handler is a plain function.
struct Failing {
  EngineSpec spec;
  int in = -1, out = -1;
  std::uint32_t reached = 0;
} failing;

void reach(base::FailPoint point) {
  if (point != failing.spec.fail_at || ++failing.reached != failing.spec.fail_nth) return;
  if (failing.spec.dies) {
    (void)!raise(SIGKILL);
    return;
  }
  char resumed = 0;
  (void)write_all(failing.out, &kPauseFollows, 1);
  (void)read_all(failing.in, &resumed, 1);
}

class Engine {
 public:
  // @errors as PromptCache::attach
  Status begin(const EngineSpec& spec) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    Origin origin;
    origin.model_files = split_model_files(spec.model);
    origin.salt = spec.salt;
    model_ = llama_model_load_from_file(spec.model.c_str(), origin.model);
    if (model_ == nullptr)
      return Error::make(Code::kNotFound, "%s: cannot be loaded", spec.model.c_str());
    llama_context_params& params = origin.context;
    params.n_ctx = spec.context_tokens;
    params.n_ubatch = params.n_batch = spec.block_tokens;
    params.n_seq_max = 2;
    params.kv_unified = true;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(spec.threads);
    params.no_perf = true;
    if (spec.change) spec.change(params);
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) return Error::make(Code::kInternal, "no context");
    if (spec.pool.empty()) return {};
    PromptCacheOptions options;
    options.pool = {spec.pool};
    options.origin = origin;
    options.block_tokens = spec.block_tokens;
    options.flight_wait_ns = spec.flight_wait_ns;
    options.retry_ns = 1'000'000;
    CACHALOT_TRY_ASSIGN(cache_, PromptCache::attach(context_, options));
    return {};
  }

  Answer answer(const Tokens& prompt, std::uint32_t kept_tokens) {
    Answer answer;
    Prefill prefill(context_, cache_.get(), 0, prompt, kept_tokens, block_tokens());
    const Status done = prefill.run();
    if (!done) answer.error = done.error().message;
    for (std::uint32_t step = 0; done && step < kGenerated; ++step)
      generate(prompt.size() + step, answer);
    answer.report = prefill.report();
    if (cache_) answer.statistics = cache_->statistics();
    return answer;
  }

  std::string fingerprint() const { return cache_ ? cache_->fingerprint() : ""; }

 private:
  std::uint32_t block_tokens() const {
    return cache_ ? cache_->block_tokens() : llama_n_ubatch(context_);
  }

  void generate(std::size_t position, Answer& answer) {
    const auto vocabulary =
        static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
    const float* const logits = llama_get_logits_ith(context_, -1);
    answer.logits.insert(answer.logits.end(), logits, logits + vocabulary);
    const llama_token next =
        static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits);
    answer.tokens.push_back(next);
    llama_batch batch = llama_batch_init(1, 0, 1);
    batch.n_tokens = 1;
    batch.token[0] = next;
    batch.pos[0] = static_cast<llama_pos>(position);
    batch.n_seq_id[0] = 1;
    batch.seq_id[0][0] = 0;
    batch.logits[0] = 1;
    if (llama_decode(context_, batch) != 0) answer.error = "a token cannot be computed";
    llama_batch_free(batch);
  }

  llama_model* model_ = nullptr;  // the process ends before they need to go
  llama_context* context_ = nullptr;
  std::unique_ptr<PromptCache> cache_;
};

int serve(const EngineSpec& spec, int in, int out) {
  auto engine = std::make_unique<Engine>();
  const Status begun = engine->begin(spec);
  if (!write_text(out, begun ? "" : begun.error().message) ||
      !write_text(out, engine->fingerprint()))
    return 1;
  if (!begun) return 0;
  failing.spec = spec;
  failing.in = in;
  failing.out = out;
  if (spec.fail_at != base::FailPoint::kNone) {
#ifdef CACHALOT_FAIL_POINTS
    base::fail_point_handler.store(reach);
#endif
  }
  Tokens prompt;
  std::uint32_t kept_tokens = 0;
  while (read_all(in, &kept_tokens, sizeof kept_tokens) && read_vector(in, prompt)) {
    const Answer answer = engine->answer(prompt, kept_tokens);
    if (!write_all(out, &kAnswerFollows, 1) || !write_text(out, answer.error) ||
        !write_all(out, &answer.report, sizeof answer.report) ||
        !write_all(out, &answer.statistics, sizeof answer.statistics) ||
        !write_vector(out, answer.tokens) || !write_vector(out, answer.logits)) {
      return 1;
    }
  }
  engine.reset();  // detaches
  return 0;
}

void in_child(const std::function<Status()>& body) {
  Result<os::Child> child = os::Child::start([&] {
    const Status status = body();
    if (!status) std::fprintf(stderr, "%s\n", status.error().message);
    return status ? 0 : 1;
  });
  ASSERT_TRUE(child);
  const Result<os::ChildStatus> ended = child->wait();
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->ok()) << ended->text();
}

}  // namespace

// --- EngineProcess -------------------------------------------------------------------------------

EngineProcess::EngineProcess(const EngineSpec& spec) {
  int requests[2], answers[2];
  EXPECT_EQ(pipe2(requests, O_CLOEXEC) | pipe2(answers, O_CLOEXEC), 0);
  to_ = os::FileDescriptor(requests[1]);
  from_ = os::FileDescriptor(answers[0]);
  Result<os::Child> child = os::Child::start([&] {
    close(requests[1]);
    close(answers[0]);
    return serve(spec, requests[0], answers[1]);
  });
  close(requests[0]);
  close(answers[1]);
  EXPECT_TRUE(child);
  if (child) child_.emplace(*std::move(child));
  std::vector<char> refusal, fingerprint;
  EXPECT_TRUE(read_vector(from_.get(), refusal) && read_vector(from_.get(), fingerprint))
      << "the engine died at its start";
  refusal_.assign(refusal.begin(), refusal.end());
  fingerprint_.assign(fingerprint.begin(), fingerprint.end());
}

void EngineProcess::post(const Tokens& prompt, std::uint32_t kept_tokens) {
  EXPECT_EQ(refusal_, "");
  EXPECT_TRUE(write_all(to_.get(), &kept_tokens, sizeof kept_tokens) &&
              write_vector(to_.get(), prompt));
}

Answer EngineProcess::take() {
  Answer answer;
  if (!has_kind_ && !read_all(from_.get(), &kind_, 1)) return answer;
  has_kind_ = false;
  EXPECT_EQ(kind_, kAnswerFollows) << "it pauses, and nobody waited for that";
  std::vector<char> error;
  answer.is_there = kind_ == kAnswerFollows && read_vector(from_.get(), error) &&
                    read_all(from_.get(), &answer.report, sizeof answer.report) &&
                    read_all(from_.get(), &answer.statistics, sizeof answer.statistics) &&
                    read_vector(from_.get(), answer.tokens) &&
                    read_vector(from_.get(), answer.logits);
  answer.error.assign(error.begin(), error.end());
  return answer;
}

bool EngineProcess::answers_within(int milliseconds) {
  pollfd waited{from_.get(), POLLIN, 0};
  return has_kind_ || poll(&waited, 1, milliseconds) == 1;
}

bool EngineProcess::pauses() {
  if (!has_kind_ && !read_all(from_.get(), &kind_, 1)) return false;
  has_kind_ = kind_ != kPauseFollows;
  return !has_kind_;
}

void EngineProcess::resume() {
  EXPECT_TRUE(write_all(to_.get(), "r", 1));
}

int EngineProcess::wait_for_death() {
  const Result<os::ChildStatus> status = child_->wait();
  return status ? status->signal : -1;
}

// --- TestKeeper ----------------------------------------------------------------------------------

TestKeeper::TestKeeper(const PoolSpec& spec) : spec_(spec) {
  static std::atomic<int> count{0};
  path_ =
      "/dev/shm/cachalot_llama_test." + std::to_string(getpid()) + "." + std::to_string(count++);
  pool::CreateOptions options;
  options.paths = {path_};
  options.huge_pages = options.populate = false;
  options.geometry.domain = std::string(spec.domain) == "coherent"
                                ? memory::DomainKind::kCoherent
                                : memory::DomainKind::kNoncoherent;
  options.geometry.devices = spec.devices;
  options.geometry.block_bytes = spec.block_bytes;
  options.geometry.capacity_blocks = spec.capacity_blocks;
  options.geometry.blocks = spec.capacity_blocks + 48;
  options.geometry.directory_slots = pool::rated_directory_slots(spec.capacity_blocks);
  options.geometry.clients = 8;
  const Result<pool::Pool> pool = pool::Pool::create(options);
  EXPECT_TRUE(pool) << (pool ? "" : pool.error().message);
  start();
}

TestKeeper::~TestKeeper() {
  if (keeper_) kill();
  EXPECT_TRUE(pool::Pool::destroy({path_}));
}

void TestKeeper::start() {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  Result<os::Child> child = os::Child::start([&] {
    Result<pool::Pool> pool = pool::Pool::open({path_}, {.huge_pages = false, .populate = false});
    if (!pool) return 1;
    Result<pool::PoolKeeper> keeper = pool->serve({});
    if (!keeper || write(ready[1], "r", 1) != 1) return 1;
    const std::atomic<bool> never{false};
    return keeper->run(never) ? 0 : 1;
  });
  close(ready[1]);
  ASSERT_TRUE(child);
  char answer = 0;
  ASSERT_TRUE(read_all(ready[0], &answer, 1)) << "the keeper cannot serve";
  close(ready[0]);
  keeper_.emplace(*std::move(child));
}

void TestKeeper::kill() {
  keeper_->send(SIGKILL);
  (void)keeper_->wait();
  keeper_.reset();
}

pool::ClientCounters TestKeeper::totals() const {
  const Result<pool::Pool> pool =
      pool::Pool::open({path_}, {.huge_pages = false, .populate = false});
  EXPECT_TRUE(pool) << (pool ? "" : pool.error().message);
  return pool ? pool->state().read_totals() : pool::ClientCounters{};
}

void TestKeeper::evict_everything(const std::string& fingerprint) {
  in_child([&]() -> Status {
    CACHALOT_TRY_ASSIGN(pool::Pool pool, pool::Pool::open({path_}));
    pool::ClientOptions options;
    options.fingerprint = fingerprint;
    options.recovery_ns = 5'000'000'000;
    CACHALOT_TRY_ASSIGN(pool::PoolClient client, pool.attach(options));
    CACHALOT_TRY(client->requests().evict_everything());
    return client->detach();
  });
}

void TestKeeper::store_other_blocks(int rounds) {
  in_child([&]() -> Status {
    CACHALOT_TRY_ASSIGN(pool::Pool pool, pool::Pool::open({path_}));
    pool::ClientOptions options;
    options.fingerprint = "somebody else's";
    options.grant_target = 4;
    CACHALOT_TRY_ASSIGN(pool::PoolClient client, pool.attach(options));
    const std::vector<std::byte> bytes(spec_.block_bytes, std::byte{0x5a});
    const std::uint64_t blocks =
        std::uint64_t{spec_.capacity_blocks} * static_cast<std::uint64_t>(rounds);
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const pool::PutItem item{{base::mix64(i), i}, bytes};
      pool::Verdict verdict{};
      CACHALOT_TRY(client->put(nullptr, {&item, 1}, {&verdict, 1}));
    }
    return client->detach();
  });
}

void TestKeeper::damage(int position) {
  in_child([&]() -> Status {
    CACHALOT_TRY_ASSIGN(pool::Pool pool, pool::Pool::open({path_}));
    const pool::Access& access = pool.access();
    for (std::uint32_t block = 0; block < access.geometry.blocks; ++block) {
      access.for_each_extent(block, access.geometry.block_bytes,
                             [&](std::byte* at, std::uint64_t bytes) {
                               constexpr std::uint64_t kFirstPosition = 16, kWithinFirstRows = 1000;
                               if (bytes <= kWithinFirstRows) return;
                               std::int32_t first = 0;
                               std::memcpy(&first, at + kFirstPosition, sizeof first);
                               if (position < 0 || first == position)
                                 at[kWithinFirstRows] ^= std::byte{1};
                             });
    }
    return {};
  });
}

// --- Models and prompts --------------------------------------------------------------------------

std::string quantized(const std::string& model, llama_ftype type, const std::string& folder) {
  const std::string path =
      folder + "/" + model.substr(model.rfind('/') + 1) + "." + std::to_string(type) + ".gguf";
  struct stat known {};
  if (stat(path.c_str(), &known) == 0) return path;
  in_child([&]() -> Status {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = type;
    params.nthread = 1;
    const std::string unfinished = path + "." + std::to_string(getpid());
    if (llama_model_quantize(model.c_str(), unfinished.c_str(), &params) != 0 ||
        rename(unfinished.c_str(), path.c_str()) != 0) {
      return Error::make(Code::kInternal, "%s cannot be quantized", model.c_str());
    }
    return {};
  });
  return path;
}

Tokens random_tokens(std::uint64_t seed, std::size_t count) {
  base::Rng rng(seed);
  Tokens tokens(count);
  for (llama_token& token : tokens) token = static_cast<llama_token>(3 + rng.below(509));
  return tokens;
}

Tokens with_other_end(const Tokens& prompt, std::size_t shared, std::size_t count,
                      std::uint64_t seed) {
  Tokens tokens = random_tokens(seed, count);
  std::copy_n(prompt.begin(), shared, tokens.begin());
  if (shared < count && shared < prompt.size() && tokens[shared] == prompt[shared]) {
    tokens[shared] = tokens[shared] == 3 ? 4 : 3;
  }
  return tokens;
}

void expect_same_answer(const Answer& answer, const Answer& expected) {
  ASSERT_TRUE(answer.is_there && expected.is_there);
  ASSERT_EQ(answer.error, "");
  ASSERT_EQ(expected.error, "");
  ASSERT_EQ(expected.tokens.size(), kGenerated);
  EXPECT_EQ(answer.tokens, expected.tokens);
  ASSERT_EQ(answer.logits.size(), expected.logits.size());
  if (std::memcmp(answer.logits.data(), expected.logits.data(),
                  answer.logits.size() * sizeof(float)) == 0)
    return;
  std::size_t at = 0;
  while (std::memcmp(&answer.logits[at], &expected.logits[at], sizeof(float)) == 0) ++at;
  ADD_FAILURE() << "logit " << at << " is " << answer.logits[at] << ", expected "
                << expected.logits[at];
}

}  // namespace cachalot::llama

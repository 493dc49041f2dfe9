// An engine, and a keeper, in processes of their own: for tests of what they share.
//
// The test's process forks them and has no threads, and never loads libllama's models itself. Requests
// and answers go through pipes; a child ends when its pipe does, or is killed.
#pragma once

#include <gtest/gtest.h>
#include <llama.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fail_point.h"
#include "os/child.h"
#include "os/file_descriptor.h"
#include "pool/pool.h"
#include "prefill.h"
#include "prompt_cache.h"

namespace cachalot::llama {

struct EngineSpec {
  std::string model;
  std::string pool = {};  // empty: none
  std::uint32_t block_tokens = 64;
  std::uint32_t context_tokens = 1024;
  std::uint64_t flight_wait_ns = 60'000'000'000;
  std::string salt = {};
  std::uint32_t threads = 1;
  // Changes what contexts are made with.
  std::function<void(llama_context_params&)> change = {};
  // Once attached: at the nth time at this point the process dies, or waits for resume().
  base::FailPoint fail_at = base::FailPoint::kNone;
  std::uint32_t fail_nth = 1;
  bool dies = true;
};

struct Answer {
  bool is_there = false;  // else the engine died
  std::string error;      // of the prefill
  Prefill::Report report;
  PromptCacheStatistics statistics;
  std::vector<llama_token> tokens;  // what it generated, greedily
  std::vector<float> logits;        // of every step, one behind the other
};

using Tokens = std::vector<llama_token>;

class EngineProcess {
 public:
  explicit EngineProcess(const EngineSpec& spec);

  // Why it could not begin; empty: it serves.
  const std::string& refusal() const { return refusal_; }
  const std::string& fingerprint() const { return fingerprint_; }  // of its namespace

  Answer ask(const Tokens& prompt, std::uint32_t kept_tokens = 0) {
    post(prompt, kept_tokens);
    return take();
  }
  void post(const Tokens& prompt, std::uint32_t kept_tokens = 0);
  Answer take();
  // Whether an answer, or a pause, comes within this time.
  bool answers_within(int milliseconds);
  // Waits until it is at its fail point; false: it answered, or died, without.
  bool pauses();
  void resume();
  // @return the signal that ended it
  int wait_for_death();
  void kill() { child_->send(9); }

 private:
  std::optional<os::Child> child_;
  os::FileDescriptor to_, from_;
  std::string refusal_, fingerprint_;
  bool has_kind_ = false;  // the first byte of what comes next was read
  char kind_ = 0;
};

struct PoolSpec {
  const char* domain = "coherent";
  std::uint32_t capacity_blocks = 64;
  std::uint64_t block_bytes = 192 << 10;
  std::uint32_t devices = 1;
};

// A pool with a keeper that can be killed. Its files go with it.
class TestKeeper {
 public:
  explicit TestKeeper(const PoolSpec& spec = {});
  ~TestKeeper();

  const std::string& path() const { return path_; }
  void start();
  void kill();
  void send(int signal) { keeper_->send(signal); }
  // Drops all blocks of all clients' namespaces, as an operator or a full pool may.
  void evict_everything(const std::string& fingerprint);
  // Fills the pool with blocks of another namespace, `rounds` times its capacity.
  void store_other_blocks(int rounds);
  // Of all clients since the pool was made; a client that lives publishes its counts every 200 ms.
  pool::ClientCounters totals() const;
  // Turns over one bit, where no header is, of each block that a sequence was stored in at this position;
  // -1: of all.
  void damage(int position = -1);

 private:
  std::string path_;
  PoolSpec spec_;
  std::optional<os::Child> keeper_;
};

// A model's file of another type of weights, made once; `type` as llama_ftype.
std::string quantized(const std::string& model, llama_ftype type, const std::string& folder);

// `count` tokens of a vocabulary of 512, the same for the same seed.
Tokens random_tokens(std::uint64_t seed, std::size_t count);
// The first `shared` tokens of `prompt`, and others up to `count`.
Tokens with_other_end(const Tokens& prompt, std::size_t shared, std::size_t count,
                      std::uint64_t seed);

// Equal to the bit: reports the first difference.
void expect_same_answer(const Answer& answer, const Answer& expected);

}  // namespace cachalot::llama

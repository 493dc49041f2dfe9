#include "trace/request/trace_generator.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace cachalot::trace {
namespace {

constexpr std::uint64_t kMostSubagents = 3;

class Random {
 public:
  explicit Random(std::uint64_t seed) : rng_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return rng_.below(bound); }
  bool chance(double probability) { return rng_.chance(probability); }
  double uniform() { return static_cast<double>(rng_.next() >> 11) * 0x1.0p-53; }

  // Exponential with mean 1, by comparisons of uniform numbers alone (J. von Neumann, Various techniques
  // used in connection with random digits, 1951).
  double exponential() {
    for (double whole = 0;; ++whole) {
      const double first = uniform();
      double last = first;
      bool is_odd = true;
      for (;;) {
        const double next = uniform();
        if (next >= last) break;
        last = next;
        is_odd = !is_odd;
      }
      if (is_odd) return whole + first;
    }
  }
  std::uint64_t tokens(double mean) { return 1 + static_cast<std::uint64_t>(mean * exponential()); }

 private:
  base::Rng rng_;
};

// Picks prompt k (from 0) with probability in proportion to 1 / (k + 1)^exponent. Shares are whole numbers
// of 32 bits, so that the last bits of a library's pow() change no trace.
class ZipfChoice {
 public:
  ZipfChoice(std::uint64_t choices, double exponent) {
    std::uint64_t sum = 0;
    for (std::uint64_t k = 1; k <= choices; ++k) {
      const double share = std::pow(static_cast<double>(k), -exponent) * 0x1.0p32;
      sum += std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(share)));
      ends_.push_back(sum);
    }
  }
  std::uint64_t pick(Random& random) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), random.below(ends_.back()));
    return static_cast<std::uint64_t>(end - ends_.begin());
  }

 private:
  std::vector<std::uint64_t> ends_;  // running sums of the shares
};

// A context's whole blocks, and how long it is.
struct Context {
  std::vector<std::uint64_t> blocks;
  std::uint64_t tokens = 0;
};

struct OpenSession {
  Context context;
  OpenSession* parent = nullptr;  // that waits for this one
  std::uint64_t waiting_for = 0;  // sub-agents in flight
};

struct Event {
  double time_ms;
  std::uint64_t number;  // later events come later where times are equal
  OpenSession* session;  // null: a session arrives
  bool operator<(const Event& other) const {
    return time_ms != other.time_ms ? time_ms > other.time_ms : number > other.number;
  }
};

Status check_within(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return Error::make(Code::kInvalidArgument, "%s: %g, expected %g to %g", name, value, low, high);
}

}  // namespace

struct TraceGenerator::Impl {
  explicit Impl(const GeneratorOptions& given)
      : options(given),
        random(given.seed),
        zipf(given.zipf > 0 ? given.system_prompts : 0, given.zipf) {
    prompts.resize(options.system_prompts);
    agent_prompts.resize(std::max<std::uint64_t>(1, options.system_prompts / 4));
    push(0, nullptr);
  }
  ~Impl() {
    for (; !events.empty(); events.pop()) delete events.top().session;
    for (OpenSession* session : waiting) delete session;
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void push(double time_ms, OpenSession* session) { events.push({time_ms, next_event++, session}); }

  void next(Request& request) {
    for (;;) {
      const Event event = events.top();
      events.pop();
      if (event.session == nullptr) {
        arrive(event.time_ms);
        continue;
      }
      emit(event.time_ms, event.session->context, request);
      go_on(event.time_ms, event.session, request.output_tokens);
      return;
    }
  }

  void arrive(double time_ms) {
    auto* const session = new OpenSession;
    begin_with(prompts[popular_prompt()], session->context);
    grow(session->context, random.tokens(options.user_tokens));
    push(time_ms, session);
    push(time_ms + random.exponential() / options.sessions_per_s * kMsPerSecond, nullptr);
  }

  std::uint64_t popular_prompt() {
    if (options.zipf > 0) return zipf.pick(random);
    const double u = random.uniform();
    return static_cast<std::uint64_t>(u * u * static_cast<double>(prompts.size()));
  }

  void begin_with(Context& prompt, Context& context) {
    if (prompt.tokens == 0) grow(prompt, options.system_tokens);
    context = prompt;
  }

  void grow(Context& context, std::uint64_t tokens) {
    context.tokens += tokens;
    const std::uint64_t blocks = context.tokens / options.block_tokens;
    while (context.blocks.size() < blocks) context.blocks.push_back(next_id++);
  }

  void emit(double time_ms, const Context& context, Request& request) {
    request.timestamp_ms = static_cast<double>(static_cast<std::uint64_t>(time_ms));
    request.input_tokens = context.tokens;
    request.output_tokens = random.tokens(options.output_tokens);
    request.hash_ids = context.blocks;
    if (context.tokens % options.block_tokens != 0) request.hash_ids.push_back(next_id++);
  }

  // What the session does after a request at `time_ms`.
  void go_on(double time_ms, OpenSession* session, std::uint64_t output) {
    const double done_ms = time_ms + static_cast<double>(output) * options.token_s * kMsPerSecond;
    grow(session->context, output);
    const bool is_subagent = session->parent != nullptr;
    const bool calls_tool = options.kind == LoadKind::kAgentic && !random.chance(1 / options.steps);
    if (session->context.tokens > options.max_context_tokens ||
        (!calls_tool && (is_subagent || random.chance(1 / options.turns)))) {
      return end(done_ms, session);
    }
    if (!calls_tool) {
      grow(session->context, random.tokens(options.user_tokens));
      return push(done_ms + random.exponential() * options.think_s * kMsPerSecond, session);
    }
    if (!is_subagent && random.chance(options.subagent_probability)) {
      return send_subagents(done_ms, session);
    }
    grow(session->context, random.tokens(options.tool_tokens));
    push(done_ms + random.exponential() * options.tool_s * kMsPerSecond, session);
  }

  void send_subagents(double time_ms, OpenSession* parent) {
    parent->waiting_for = 1 + random.below(kMostSubagents);
    waiting.push_back(parent);
    Context task;
    begin_with(agent_prompts[random.below(agent_prompts.size())], task);
    grow(task, random.tokens(options.user_tokens));
    for (std::uint64_t i = 0; i < parent->waiting_for; ++i) {
      auto* const agent = new OpenSession{.context = task, .parent = parent};
      grow(agent->context, random.tokens(options.user_tokens));
      push(time_ms, agent);
    }
  }

  void end(double time_ms, OpenSession* session) {
    OpenSession* const parent = session->parent;
    delete session;
    if (parent == nullptr) return;
    grow(parent->context, random.tokens(options.output_tokens));
    if (--parent->waiting_for > 0) return;
    waiting.erase(std::find(waiting.begin(), waiting.end(), parent));
    push(time_ms, parent);
  }

  const GeneratorOptions options;
  Random random;
  const ZipfChoice zipf;
  std::vector<Context> prompts;        // made when they are first used
  std::vector<Context> agent_prompts;  // of the kinds of sub-agents
  std::priority_queue<Event> events;
  std::vector<OpenSession*> waiting;  // for sub-agents; all others have an event
  std::uint64_t next_event = 0;
  std::uint64_t next_id = 0;
};

GeneratorOptions GeneratorOptions::of(LoadKind kind) {
  GeneratorOptions options;
  options.kind = kind;
  if (kind == LoadKind::kAgentic) return options;
  options.system_tokens = 1000;
  options.user_tokens = 200;
  options.subagent_probability = 0;
  return options;
}

Status GeneratorOptions::check() const {
  CACHALOT_TRY(check_within("block_tokens", static_cast<double>(block_tokens), 1, 1 << 20));
  CACHALOT_TRY(check_within("sessions_per_s", sessions_per_s, 1e-6, 1e6));
  CACHALOT_TRY(check_within("system_prompts", static_cast<double>(system_prompts), 1, 1e6));
  CACHALOT_TRY(check_within("system_tokens", static_cast<double>(system_tokens), 0, 1e7));
  CACHALOT_TRY(check_within("zipf", zipf, 0, 10));
  CACHALOT_TRY(check_within("user_tokens", user_tokens, 0, 1e7));
  CACHALOT_TRY(check_within("output_tokens", output_tokens, 0, 1e7));
  CACHALOT_TRY(check_within("tool_tokens", tool_tokens, 0, 1e7));
  CACHALOT_TRY(check_within("turns", turns, 1, 1e6));
  CACHALOT_TRY(check_within("steps", steps, 1, 1e6));
  CACHALOT_TRY(check_within("subagent_probability", subagent_probability, 0, 1));
  CACHALOT_TRY(check_within("think_s", think_s, 0, 1e6));
  CACHALOT_TRY(check_within("tool_s", tool_s, 0, 1e6));
  CACHALOT_TRY(check_within("token_s", token_s, 0, 1e3));
  return check_within("max_context_tokens", static_cast<double>(max_context_tokens), 1, 1e8);
}

Result<LoadKind> parse_load_kind(const std::string& name) {
  if (name == "chat") return LoadKind::kChat;
  if (name == "agentic") return LoadKind::kAgentic;
  return Error::make(Code::kInvalidArgument, "kind: \"%.60s\" is none, expected chat or agentic",
                     name.c_str());
}

Result<TraceGenerator> TraceGenerator::make(const GeneratorOptions& options) {
  CACHALOT_TRY(options.check());
  return TraceGenerator(std::make_unique<Impl>(options));
}

TraceGenerator::TraceGenerator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceGenerator::TraceGenerator(TraceGenerator&&) noexcept = default;
TraceGenerator& TraceGenerator::operator=(TraceGenerator&&) noexcept = default;
TraceGenerator::~TraceGenerator() = default;

void TraceGenerator::next(Request& request) {
  impl_->next(request);
}

}  // namespace cachalot::trace

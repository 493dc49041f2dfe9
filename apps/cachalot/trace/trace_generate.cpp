// `cachalot trace generate`: made-up loads for tests of policies.

#include <unistd.h>

#include <cinttypes>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "command.h"
#include "output.h"
#include "result_flags.h"
#include "trace/request/trace_generator.h"
#include "trace/request/trace_writer.h"
#include "values.h"

namespace cachalot::apps {
namespace {

// A flag that is not given leaves what the kind of load has.
struct GenerateOptions {
  std::string kind = "agentic";
  std::uint64_t requests = 0;
  trace::GeneratorOptions given;
  std::string out, json;
};

struct LoadFlag {
  const char* name;
  const char* type;
  double trace::GeneratorOptions::*value;
  const char* text;
  bool is_of_agents = false;  // a chat has nothing of it
};
constexpr LoadFlag kLoadFlags[] = {
    {"--sessions-per-s", "X", &trace::GeneratorOptions::sessions_per_s, "sessions that arrive"},
    {"--zipf", "S", &trace::GeneratorOptions::zipf,
     "system prompt k is taken in proportion to 1 / k^S; 0: the first ones by a square"},
    {"--user-tokens", "X", &trace::GeneratorOptions::user_tokens, "mean of a user's message"},
    {"--output-tokens", "X", &trace::GeneratorOptions::output_tokens, "mean of an answer"},
    {"--tool-tokens", "X", &trace::GeneratorOptions::tool_tokens, "mean of a tool's result", true},
    {"--turns", "X", &trace::GeneratorOptions::turns, "mean messages of a user in a session"},
    {"--steps", "X", &trace::GeneratorOptions::steps, "mean requests of an agent for a message",
     true},
    {"--subagents", "P", &trace::GeneratorOptions::subagent_probability,
     "probability that a step starts one to three sub-agents", true},
    {"--think-s", "X", &trace::GeneratorOptions::think_s,
     "mean time between an answer and the next message"},
    {"--tool-s", "X", &trace::GeneratorOptions::tool_s, "mean time of a tool's call", true},
    {"--token-s", "X", &trace::GeneratorOptions::token_s, "time of an output token"},
};

struct Number {
  const char* name;
  std::uint64_t trace::GeneratorOptions::*value;
  const char* text;
};
constexpr Number kNumbers[] = {
    {"--seed", &trace::GeneratorOptions::seed, "changes the trace"},
    {"--block-tokens", &trace::GeneratorOptions::block_tokens, "tokens of a block"},
    {"--system-prompts", &trace::GeneratorOptions::system_prompts,
     "system prompts that sessions share"},
    {"--system-tokens", &trace::GeneratorOptions::system_tokens, "tokens of each system prompt"},
    {"--max-context-tokens", &trace::GeneratorOptions::max_context_tokens,
     "a session ends beyond this number of tokens"},
};

// `error` is about the member that the flag sets, by the member's name.
Error of_flag(const char* flag, const Error& error) {
  return Error::make(error.code, "%s%s", flag, error.message + std::strcspn(error.message, ":"));
}

// What would be ignored was meant for something else.
Status check_applies(const LoadFlag& flag, trace::LoadKind kind) {
  if (!flag.is_of_agents || kind == trace::LoadKind::kAgentic) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: a chat has no agents and no tools, expected --kind agentic", flag.name);
}

// What the kind of load has, and the flags change. One flag after the other, so that an error is its own.
Result<trace::GeneratorOptions> load_of(const GenerateOptions& options, trace::LoadKind kind,
                                        const Command& command) {
  trace::GeneratorOptions load = trace::GeneratorOptions::of(kind);
  const auto set = [&](const char* flag, auto member) -> Status {
    if (command.count(flag) == 0) return {};
    load.*member = options.given.*member;
    const Status checked = load.check();
    return checked ? checked : of_flag(flag, checked.error());
  };
  for (const LoadFlag& flag : kLoadFlags) {
    if (command.count(flag.name) != 0) CACHALOT_TRY(check_applies(flag, kind));
    CACHALOT_TRY(set(flag.name, flag.value));
  }
  for (const Number& number : kNumbers) CACHALOT_TRY(set(number.name, number.value));
  return load;
}

// A progress line on a terminal; nothing in a pipe.
Status generate(const GenerateOptions& options, const Command& command) {
  CACHALOT_TRY(check_are_apart({{"--out", options.out}, {"--json", options.json}}));
  CACHALOT_TRY_ASSIGN(const trace::LoadKind kind, trace::parse_load_kind(options.kind));
  CACHALOT_TRY_ASSIGN(const trace::GeneratorOptions load, load_of(options, kind, command));
  CACHALOT_TRY_ASSIGN(trace::TraceGenerator generator, trace::TraceGenerator::make(load));
  CACHALOT_TRY_ASSIGN(Output json, Output::open(options.json));
  CACHALOT_TRY_ASSIGN(trace::TraceWriter writer, trace::TraceWriter::open(options.out));
  trace::Request request;
  while (writer.requests() < options.requests) {
    generator.next(request);
    CACHALOT_TRY(writer.write(request));
    show_requests(writer.requests(), 1u << 16);
  }
  CACHALOT_TRY(writer.finish());
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
  std::fprintf(options.out == "-" ? stderr : human_output(options.json),
               "%s, %s of %" PRIu64 " tokens\n",
               base::counted(writer.requests(), "request").c_str(),
               base::counted(writer.blocks(), "block").c_str(), load.block_tokens);
  return json.write_json({{"kind", options.kind},
                          {"seed", load.seed},
                          {"requests", writer.requests()},
                          {"blocks_total", writer.blocks()},
                          {"block_tokens", load.block_tokens}});
}

int run_generate(const GenerateOptions& options, const Command& command) {
  const Status status = generate(options, command);
  return status ? kExitDone : fail(status.error());
}

std::string default_of(double chat, double agentic) {
  const auto text = [](double value) {
    char shown[32];
    std::snprintf(shown, sizeof shown, "%g", value);
    return std::string(shown);
  };
  if (chat == agentic) return " (default " + text(chat) + ")";
  return " (default " + text(agentic) + ", of a chat " + text(chat) + ")";
}

}  // namespace

void add_trace_generate(Command& trace, Chosen& chosen) {
  using trace::GeneratorOptions;
  const auto chat = GeneratorOptions::of(trace::LoadKind::kChat);
  const auto agentic = GeneratorOptions::of(trace::LoadKind::kAgentic);
  auto options = std::make_shared<GenerateOptions>();
  Command* const command = trace.add_subcommand(
      "generate", "generates a load: sessions that share system prompts, grow, and end");
  command->add_option("--kind", options->kind, "agentic or chat")
      ->type_name("agentic|chat")
      ->capture_default_str();
  command->add_option("--requests", options->requests, "how many")
      ->type_name("N")
      ->transform(number(1, ~std::uint64_t{0}))
      ->required();
  add_out_flag(*command, options->out);
  for (const Number& flag : kNumbers) {
    command
        ->add_option(flag.name, options->given.*flag.value,
                     flag.text + default_of(static_cast<double>(chat.*flag.value),
                                            static_cast<double>(agentic.*flag.value)))
        ->type_name("N")
        ->transform(number(0, ~std::uint64_t{0}));
  }
  for (const LoadFlag& flag : kLoadFlags) {
    command
        ->add_option(flag.name, options->given.*flag.value,
                     flag.text + default_of(chat.*flag.value, agentic.*flag.value))
        ->type_name(flag.type);
  }
  add_counts_flag(*command, options->json);
  command->footer(
      "Example: cachalot trace generate --kind agentic --requests 10000 --seed 7 --out "
      "agents.jsonl.gz");
  command->callback([options, command, &chosen] {
    chosen.run = [options, command] { return run_generate(*options, *command); };
  });
}

}  // namespace cachalot::apps

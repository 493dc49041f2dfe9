// The command line: reads it, and runs the one subcommand that it chose.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"

namespace cachalot::apps {
namespace {

// Each error is one line; `--help` is where the explanations are.
int usage_error(const std::string& text, const std::string& command) {
  return fail(Error::make(Code::kInvalidArgument, "%.170s (see `%s --help`)", text.c_str(),
                          command.c_str()));
}

std::vector<CLI::App*> commands_of(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

std::string names_of(CLI::App& app) {
  std::string names;
  for (const CLI::App* command : commands_of(app)) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

void add_commands(CLI::App& app, Chosen& chosen) {
  add_replay(app, chosen);
  add_serve(app, chosen);
  add_stop(app, chosen);
  add_pool(app, chosen);
  add_put(app, chosen);
  add_get(app, chosen);
  add_lookup(app, chosen);
  add_evict(app, chosen);
  add_hitrate(app, chosen);
  add_bench(app, chosen);
}

// The command that the words in front of the first flag name: as deep as commands go.
// @return false: `unknown` is a word where a command was expected
bool find_command(CLI::App& app, int argc, char** argv, CLI::App*& command, std::string& unknown) {
  command = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::vector<CLI::App*> known = commands_of(*command);
    if (known.empty()) return true;
    const auto next = std::find_if(known.begin(), known.end(), [&](const CLI::App* candidate) {
      return candidate->get_name() == argv[i];
    });
    if (next == known.end()) {
      unknown = argv[i];
      return false;
    }
    command = *next;
  }
  return true;
}

// The first flag that `command` does not have. A missing argument is often a misspelt flag, so this
// is looked for before the parser's own complaint.
std::string unknown_flag(const CLI::App& command, int argc, char** argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string flag = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (flag.size() > 2 && flag.starts_with("--") && command.get_option_no_throw(flag) == nullptr) {
      return flag;
    }
  }
  return "";
}

int print_help(const CLI::App& app) {
  const std::string text = app.help();
  std::fputs(text.c_str(), stdout);
  if (!text.ends_with('\n')) std::fputc('\n', stdout);
  return kExitDone;
}

std::string full_name(const CLI::App* command) {
  const CLI::App* const parent = command->get_parent();
  return parent == nullptr ? "cachalot" : full_name(parent) + " " + command->get_name();
}

int run(int argc, char** argv) {
  CLI::App app("A shared pool of KV-cache blocks for LLM inference engines.", "cachalot");
  app.set_version_flag("--version", "cachalot " CACHALOT_VERSION);
  app.footer(
      "Example: cachalot replay --trace conversation_trace.jsonl.gz --engines 4 "
      "--block-bytes 64KiB --capacity-blocks 20000\n"
      "Exit code: 0 done; 1 a fault, or nothing found; 2 bad usage or input; 3 the surroundings "
      "refuse (no keeper, no space, no permission, busy)");
  Chosen chosen;
  add_commands(app, chosen);

  CLI::App* command = nullptr;
  std::string unknown;
  if (!find_command(app, argc, argv, command, unknown)) {
    return usage_error(
        "there is no command \"" + unknown + "\", expected one of: " + names_of(*command),
        full_name(command));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return print_help(app);
  } catch (const CLI::Success& done) {  // --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    const std::string flag = unknown_flag(*command, argc, argv);
    if (!flag.empty()) return usage_error("there is no flag " + flag, full_name(command));
    return usage_error(error.what(), full_name(command));
  }
  if (!chosen.run) {
    return usage_error("a command is missing, expected one of: " + names_of(*command),
                       full_name(command));
  }
  return chosen.run();
}

}  // namespace
}  // namespace cachalot::apps

int main(int argc, char** argv) {
  using namespace cachalot;
  try {
    return apps::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return apps::fail(Error::make(Code::kNoSpace, "out of memory"));
  } catch (const std::exception& error) {
    return apps::fail(Error::make(Code::kInternal, "unexpected: %.150s", error.what()));
  }
}
